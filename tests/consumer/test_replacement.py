"""The time in which a slot of the window is empty between two messages counts, on every broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.brokers.memory import broker as memory
from flyball.brokers.port import Delivery
from tests.consumer.queues import ChannelUnderTest, fresh, until
from tests.consumer.virtual_time import run_in_virtual_time

HANDLING_S = 0.01
_Receiver = memory._MemoryReceiver


@pytest.fixture
def slow_memory(monkeypatch: pytest.MonkeyPatch) -> ChannelUnderTest:
    """The memory broker, asked as a database is: it takes 1 ms to write an acknowledgement and 2 ms to claim."""
    fetch, acknowledge = _Receiver._fetch, _Receiver._acknowledge

    async def slow_fetch(self: Any, limit: int) -> Sequence[Delivery]:
        await asyncio.sleep(0.002)
        return await fetch(self, limit)

    async def slow_acknowledge(self: Any, deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(0.001)
        await acknowledge(self, deliveries)

    monkeypatch.setattr(_Receiver, "_fetch", slow_fetch)
    monkeypatch.setattr(_Receiver, "_acknowledge", slow_acknowledge)
    return ChannelUnderTest(f"memory://{uuid.uuid4().hex}", fresh(), log=False)


async def handle(_: Message) -> None:
    await asyncio.sleep(HANDLING_S)


def test_goals_are_reached_though_places_are_empty_for_a_while(
    slow_memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> dict[float, list[float]]:
        await slow_memory.send([b"x"] * 12_000)
        consumer = Consumer(
            slow_memory.url, handler=handle, goal="rate=200", period_s=0.5, **slow_memory.arguments
        )
        async with consumer:
            for goal in (200.0, 500.0):
                consumer.goal = f"rate={goal:g}"
                await asyncio.sleep(10.0)
        receipts = consumer.steps()
        assert consumer._receiver is not None
        assert consumer._receiver.round_trip_s == pytest.approx(0.002, rel=0.5)
        return {
            goal: [
                one.measurement for one in receipts if one.setpoint == goal and isinstance(one.measurement, float)
            ]
            for goal in (200.0, 500.0)
        }

    rates = run_in_virtual_time(scenario(), monkeypatch)
    for goal, seen in rates.items():
        assert len(seen) >= 18
        assert fmean(seen[2:6]) == pytest.approx(goal, rel=0.03), seen  # by the law, before the trim has learned
        assert fmean(seen[6:]) == pytest.approx(goal, rel=0.01), seen


def test_a_drought_does_not_widen_the_window(
    slow_memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers send a quarter of the goal: a slot is empty because there is no message, not for the broker."""

    async def scenario() -> tuple[float, list[float]]:
        await slow_memory.send([])
        took_s: list[float] = []
        async with (
            await connect(slow_memory.url) as broker,
            Consumer(slow_memory.url, handler=handle, goal="rate=400", **slow_memory.arguments) as consumer,
        ):
            sender = await broker.sender(slow_memory.name)
            for _ in range(3000):
                await sender.send_batch([Message(b"now and then")])
                await asyncio.sleep(0.01)
                if (residence_s := consumer.stats.residence_s) is not None:
                    took_s.append(residence_s)
            return consumer.window, took_s

    window, took_s = run_in_virtual_time(scenario(), monkeypatch)
    assert max(took_s) < HANDLING_S + 0.006  # an acknowledgement and two claims
    assert window < 400.0 * (HANDLING_S + 0.006)


@pytest.mark.parametrize("kind", ["queue", "log"])
@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_it_is_measured_on_the_embedded_brokers(tmp_path: Path, name: str, kind: str) -> None:
    url = f"memory://{uuid.uuid4().hex}" if name == "memory" else f"sqlite:///{tmp_path}/events.db"
    asyncio.run(_measured(ChannelUnderTest(url, fresh(), log=kind == "log")))


def test_it_is_measured_on_every_broker(channel: ChannelUnderTest) -> None:
    asyncio.run(_measured(channel))


async def _measured(channel: ChannelUnderTest) -> None:
    await channel.send([b"x"] * 500)
    consumer = Consumer(channel.url, handler=handle, goal="rate=100", period_s=0.2, **channel.arguments)
    async with consumer:
        await until(lambda: len(consumer.steps()) >= 5 and consumer.stats.residence_s is not None)
        receiver, residence_s = consumer._receiver, consumer.stats.residence_s
        assert receiver is not None
        assert residence_s is not None
        assert receiver.round_trip_s > 0.0
        assert residence_s > HANDLING_S
