"""Messages that pause before a retry: they occupy no slot of the window, and nothing else changes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from flyball import Consumer, Message, RetryPolicy, connect
from tests.consumer.queues import ChannelUnderTest, fresh, until
from tests.consumer.virtual_time import run_in_virtual_time

HANDLING_S = 0.01


class Handler:
    """Takes 10 ms; messages `bad` fail, `later` fail the first time."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.running = self.most = 0

    async def __call__(self, message: Message) -> None:
        self.calls.append(message.body)
        again = self.calls.count(message.body) > 1 if message.body.startswith(b"later") else False
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(HANDLING_S)
        self.running -= 1
        if message.body == b"bad" or (message.body.startswith(b"later") and not again):
            raise ValueError(message.body)


async def _run(
    channel: ChannelUnderTest, share: float, seconds: float, **options: Any
) -> tuple[Consumer, Handler]:
    random.seed(1)  # the pauses have jitter
    every = round(1 / share) if share else 10**9
    await channel.send([b"bad" if number % every == 0 else b"good" for number in range(20_000)])
    handler = Handler()
    async with Consumer(channel.url, handler=handler, **options, **channel.arguments) as consumer:
        await asyncio.sleep(seconds)
    return consumer, handler


@pytest.mark.parametrize("goal", [100.0, 400.0])
@pytest.mark.parametrize("share", [0.05, 0.002])
def test_a_rate_is_held_though_some_messages_always_fail(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch, goal: float, share: float
) -> None:
    consumer, handler = run_in_virtual_time(_run(memory, share, 20.0, goal=f"rate={goal:g}"), monkeypatch)
    rates = [step.measurement for step in consumer.steps() if isinstance(step.measurement, float)]
    assert fmean(rates[4:]) == pytest.approx(goal, rel=0.05), rates
    assert consumer.stats.dead_lettered > 0
    assert handler.most <= 2.0 * goal * HANDLING_S + 1.0  # about as wide as the rate needs


def test_failing_messages_cost_the_capacity_no_more_than_their_attempts(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, handler = run_in_virtual_time(_run(memory, 0.05, 20.0, goal="capacity", concurrency=8), monkeypatch)
    assert handler.most == 8
    assert len(handler.calls) >= 0.9 * 20.0 * 8 / HANDLING_S


def test_an_outage_makes_few_dead_letters(memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages fail: their pauses slow the consumer down, though the goal is a hundred a second."""
    consumer, _ = run_in_virtual_time(_run(memory, 1.0, 30.0, goal="rate=100"), monkeypatch)
    assert consumer.stats.dead_lettered < 300


def test_the_window_holds_for_messages_that_come_back_from_their_pause(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, handler = run_in_virtual_time(_run(memory, 0.2, 10.0, window=5), monkeypatch)
    assert handler.most == 5
    assert consumer.stats.dead_lettered > 100
    assert len(handler.calls) >= 0.9 * 10.0 * 5 / HANDLING_S


@pytest.mark.parametrize("options", [{"window": 1}, {"goal": "rate=50", "max_window": 1}])
def test_a_consumer_of_one_message_at_a_time_keeps_the_order(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    async def scenario() -> list[bytes]:
        await memory.send([b"1", b"later 2", b"3", b"later 4", b"5"])
        handler = Handler()
        async with Consumer(memory.url, handler=handler, **options, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 5)
        return handler.calls

    calls = run_in_virtual_time(scenario(), monkeypatch)
    assert calls == [b"1", b"later 2", b"later 2", b"3", b"later 4", b"later 4", b"5"]


def test_a_stop_returns_what_pauses(memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> tuple[int, int]:
        await memory.send([b"bad"] * 3 + [b"good"] * 20)
        retry = RetryPolicy(retries=3, first_s=1000.0, longest_s=2000.0)
        consumer = Consumer(memory.url, handler=Handler(), retries=retry, window=2, **memory.arguments)
        async with consumer:
            await until(lambda: consumer.stats.acked == 20)
            assert consumer.stats.pausing == 3
        async with await connect(memory.url) as broker:
            return consumer.stats.returned, await broker.depth(memory.name)

    assert run_in_virtual_time(scenario(), monkeypatch) == (3, 3)


def test_every_message_is_handled_or_a_dead_letter_on_sqlite(tmp_path: Path) -> None:
    channel = ChannelUnderTest(f"sqlite:///{tmp_path}/shop.db", fresh(), log=False)

    async def scenario() -> None:
        ids = await channel.send([b"bad" if number % 10 == 0 else b"good" for number in range(200)])
        handled: Counter[str] = Counter()
        running = most = 0

        async def handle(message: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            if message.body == b"bad":
                raise ValueError("bad")
            handled[message.id] += 1

        retry = RetryPolicy(retries=2, first_s=0.02, longest_s=0.05)
        consumer = Consumer(channel.url, handler=handle, retries=retry, window=4, **channel.arguments)
        async with consumer:
            await until(lambda: consumer.stats.acked == 200)
        assert set(handled.values()) == {1}
        assert len(handled) == 180
        assert set(handled) < set(ids)
        async with await connect(channel.url) as broker:
            assert await broker.depth(channel.name) == 0
            assert await broker.depth(f"{channel.name}.dead") == 20

    asyncio.run(scenario())
