"""One line for a RabbitMQ that is away, instead of pika's many; lines of other programs' connections stay."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pika
import pytest

from flyball.brokers import connect
from flyball.brokers.port import Unreachable
from flyball.servers.ports import LOOPBACK


@pytest.fixture
def refusing_port() -> Iterator[int]:
    with socket.socket() as taken:  # bound, so that nobody else gets it, and not listening
        taken.bind((LOOPBACK, 0))
        yield taken.getsockname()[1]


def _fail_to_connect(port: int) -> None:
    async def scenario() -> None:
        with pytest.raises(Unreachable, match="Connection refused"):
            await connect(f"amqp://{LOOPBACK}:{port}/")

    asyncio.run(scenario())


def test_a_failed_attempt_is_one_line(refusing_port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _fail_to_connect(refusing_port)
    (line,) = caplog.record_tuples
    assert line[:2] == ("flyball.brokers.rabbitmq.connection", logging.WARNING)
    assert "does not answer (Connection refused)" in line[2]


def test_the_details_of_pika_are_there_at_debug(refusing_port: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        _fail_to_connect(refusing_port)
    levels = {record.levelno for record in caplog.records if record.name.startswith("pika.")}
    assert levels == {logging.DEBUG}


def test_a_connection_that_the_program_opens_with_pika_logs_as_ever(
    refusing_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        _fail_to_connect(refusing_port)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, refusing_port))
    assert any(record.name.startswith("pika.") and record.levelno == logging.ERROR for record in caplog.records)
