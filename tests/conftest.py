"""Servers shared by all tests: started once a run, on first use, and stopped at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flyball.servers import ServerMissing
from flyball.servers.kafka import KafkaServer
from flyball.servers.postgresql import PostgresqlServer
from flyball.servers.rabbitmq import RabbitMqNode, installed
from flyball.testing.faults import start_own_rabbitmq
from tests.new_cases import NEW_CASES
from tests.postgresql_databases import empty_database, started_postgresql
from tests.rabbitmq_nodes import started_node

# Tests say nothing about time: a loaded machine must not fail them. `make test` generates the same cases each
# time, so that a change is judged by itself; `make explore` generates new ones. A failure prints what repeats it.
settings.register_profile(
    "flyball",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=not NEW_CASES,
)
settings.load_profile("flyball")


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMqNode]:
    """A local RabbitMQ node. Tests that kill, pause or alarm a node start their own."""
    yield from started_node()


@pytest.fixture(scope="session")
def rabbitmq_4() -> Iterator[RabbitMqNode]:
    """A local node of RabbitMQ 4, which is fetched on first use."""
    yield from started_node(4)


@pytest.fixture(scope="module")
def own_rabbitmq() -> Iterator[RabbitMqNode]:
    """A RabbitMQ node that the tests of one module may kill, pause or alarm."""
    yield from _own_rabbitmq(None)


@pytest.fixture(scope="module")
def own_rabbitmq_4() -> Iterator[RabbitMqNode]:
    """The same with RabbitMQ 4."""
    yield from _own_rabbitmq(4)


def _own_rabbitmq(version: int | None) -> Iterator[RabbitMqNode]:
    with ExitStack() as stack:
        try:
            node = stack.enter_context(start_own_rabbitmq(version))
        except ServerMissing as reason:
            pytest.skip(f"needs a broker of its own to harm: {reason}")
        yield node


@pytest.fixture(scope="session")
def amqp_url(request: pytest.FixtureRequest) -> str:
    """The server that FLYBALL_TEST_AMQP_URL names, else the local node."""
    given = os.environ.get("FLYBALL_TEST_AMQP_URL")
    if given:
        return given
    if not installed():
        pytest.skip("no RabbitMQ: set FLYBALL_TEST_AMQP_URL, or apt-get install rabbitmq-server")
    return str(request.getfixturevalue("rabbitmq").url)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A local Kafka broker. Tests that kill or pause a broker start their own."""
    yield from _started("no Kafka: set FLYBALL_TEST_KAFKA_URL, or")


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaServer]:
    """A Kafka broker that the tests of one module may kill or pause."""
    yield from _started("needs a broker of its own to kill or pause")


def _started(otherwise: str) -> Iterator[KafkaServer]:
    server = KafkaServer()
    try:
        server.start()
    except ServerMissing as reason:
        pytest.skip(f"{otherwise}: {reason}")
    with server:
        yield server


@pytest.fixture(scope="session")
def kafka_url(request: pytest.FixtureRequest) -> str:
    """The broker that FLYBALL_TEST_KAFKA_URL names, else the local one."""
    given = os.environ.get("FLYBALL_TEST_KAFKA_URL")
    return given or str(request.getfixturevalue("kafka").url)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server. Tests that kill it start their own."""
    yield from started_postgresql()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return empty_database(request.getfixturevalue("postgresql"))
