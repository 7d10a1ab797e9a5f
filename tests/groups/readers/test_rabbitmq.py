"""Queues of RabbitMQ that one member reads at a time, and those that other programs declared."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.brokers.rabbitmq.broker import RabbitMqBroker
from flyball.servers.rabbitmq import RabbitMqNode
from tests.groups.readers.members import GroupUnderTest, Handled, members, until


def test_a_queue_without_a_single_active_consumer_has_an_exclusive_one(
    rabbitmq: RabbitMqNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    group = GroupUnderTest(rabbitmq.url, tmp_path / "groups.db", queues=2)

    async def scenario() -> None:
        async with await connect(group.url) as broker:
            await broker.declare(f"{group.topic}.0")
        handled = Handled()
        async with members(group, handled, "a", "b") as (a, b):
            await a.readers.take(group.queue(0), 1)
            await a.readers.take(group.queue(1), 1)
            await group.send(0, range(100))
            await until(lambda: len(handled.of(0)) >= 20)
            taking = asyncio.create_task(b.readers.take(group.queue(0), 2))  # too early: a is the exclusive reader
            await asyncio.sleep(0.05)
            assert await a.readers.release(group.queue(0), 60.0)
            await taking
            await until(lambda: len(handled.of(0)) >= 100)
            assert handled.of(0) == list(range(100))

    asyncio.run(scenario())
    assert f"queue {group.topic}.0 has no single active consumer" in caplog.text
    assert f"queue {group.topic}.1 has no" not in caplog.text


def test_what_a_declared_queue_can_do(rabbitmq_4: RabbitMqNode, rabbitmq: RabbitMqNode) -> None:
    async def declare(url: str, name: str) -> tuple[bool, bool]:
        async with await connect(url) as broker:
            assert isinstance(broker, RabbitMqBroker)
            kind = await broker.declare_group_queue(name)
            assert await broker.declare_group_queue(name) == kind
            await broker.delete(name)
        return kind.single_active, kind.quorum

    async def scenario() -> None:
        assert await declare(rabbitmq_4.url, "kinds.0") == (True, True)
        assert await declare(f"{rabbitmq_4.url}&queue_type=classic", "kinds.0") == (True, False)
        assert await declare(rabbitmq.url, "kinds.0") == (True, False)
        assert await declare(f"{rabbitmq.url}&queue_type=quorum", "kinds.0") == (True, True)

    asyncio.run(scenario())
