"""Servers shared by all tests: started once a run, on first use, and stopped at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from flyball.servers import ServerMissing
from flyball.servers.kafka import KafkaServer
from flyball.servers.rabbitmq import RabbitMqNode, installed

# Tests say nothing about time: a loaded machine must not fail them. A failure prints what repeats it.
settings.register_profile(
    "flyball", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, derandomize=False
)
settings.load_profile("flyball")


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMqNode]:
    """A local RabbitMQ node. Tests that kill, pause or alarm a node start their own."""
    if not installed():
        pytest.skip("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    with RabbitMqNode() as node:
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
