"""The sites of all adapters: brokers that these tests may harm, each left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flyball.servers import ServerMissing
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.faults import FaultSite, kafka_site, memory_site, rabbitmq_site, sqlite_site, stream_site


@pytest.fixture(scope="module")
def memory() -> Iterator[FaultSite]:
    with memory_site() as site:
        yield site


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultSite]:
    with sqlite_site(tmp_path_factory.mktemp("disk")) as site:
        yield site


@pytest.fixture(scope="module")
def rabbitmq_queue(own_rabbitmq: RabbitMqNode) -> Iterator[FaultSite]:
    with rabbitmq_site(own_rabbitmq) as site:
        yield site


@pytest.fixture(scope="module")
def rabbitmq_stream(own_rabbitmq: RabbitMqNode) -> Iterator[FaultSite]:
    with stream_site(own_rabbitmq) as site:
        yield site


@pytest.fixture(scope="module")
def rabbitmq_4_queue(own_rabbitmq_4: RabbitMqNode) -> Iterator[FaultSite]:
    with rabbitmq_site(own_rabbitmq_4) as site:
        yield site


@pytest.fixture(scope="module")
def rabbitmq_4_stream(own_rabbitmq_4: RabbitMqNode) -> Iterator[FaultSite]:
    with stream_site(own_rabbitmq_4) as site:
        yield site


@pytest.fixture(scope="module")
def kafka_broker() -> Iterator[FaultSite]:
    with ExitStack() as stack:
        try:
            site = stack.enter_context(kafka_site())
        except ServerMissing as reason:
            pytest.skip(f"needs a broker of its own to harm: {reason}")
        yield site
