"""A rate goal is an upper bound: from the first second, for quick handlers, and when handlers become faster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flyball import Consumer, Message
from flyball.control.controllers.fixed import Fixed
from tests.consumer.queues import ChannelUnderTest, fresh, until
from tests.consumer.virtual_time import run_in_virtual_time


async def _handed_each_second(
    channel: ChannelUnderTest, goal: str, work_s: Callable[[float], float], seconds: int, **options: Any
) -> list[int]:
    await channel.send([b"x"] * 20_000)

    async def handle(_: Message) -> None:
        if (needed_s := work_s(time.monotonic())) > 0.0:
            await asyncio.sleep(needed_s)

    consumer = Consumer(channel.url, handler=handle, goal=goal, **options, **channel.arguments)
    async with consumer:
        counts = [consumer.stats.handed]
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            counts.append(consumer.stats.handed)
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize("work_s", [0.0, 0.001, 0.02, 0.09])
@pytest.mark.parametrize("options", [{}, {"window": 50}])
def test_a_low_rate_is_held_in_every_second(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch, work_s: float, options: dict[str, Any]
) -> None:
    scenario = _handed_each_second(memory, "rate=10", lambda _: work_s, 15, **options)
    assert all(9 <= count <= 11 for count in run_in_virtual_time(scenario, monkeypatch))


def test_handlers_that_become_faster_do_not_exceed_the_rate(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = _handed_each_second(memory, "rate=100", lambda now_s: 0.1 if now_s < 20.0 else 0.001, 40)
    counts = run_in_virtual_time(scenario, monkeypatch)
    assert sum(counts[5:20]) == pytest.approx(1500, rel=0.03), counts
    assert max(counts) <= 120, counts
    assert sum(counts[25:]) == pytest.approx(1500, rel=0.03), counts


def test_a_controller_of_the_users_own_and_its_advice_are_not_bounded(
    memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = _handed_each_second(memory, "rate=10", lambda _: 0.1, 5, controller=Fixed(20.0), window=20)
    assert run_in_virtual_time(scenario, monkeypatch)[-1] == pytest.approx(200, rel=0.1)
    advising = _handed_each_second(memory, "rate=10", lambda _: 0.1, 5, mode="advise", window=20)
    assert run_in_virtual_time(advising, monkeypatch)[-1] == pytest.approx(200, rel=0.1)


def test_a_stop_does_not_wait_for_the_pace(memory: ChannelUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> float:
        await memory.send([b"x"] * 5)

        async def handle(_: Message) -> None: ...

        async with Consumer(memory.url, handler=handle, goal="rate=0.001", **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 1)
            began_s = time.monotonic()
        assert consumer.stats.acked == 1
        return time.monotonic() - began_s

    assert run_in_virtual_time(scenario(), monkeypatch) < 5.0


def test_no_message_comes_too_early_on_sqlite(tmp_path: Path) -> None:
    channel = ChannelUnderTest(f"sqlite:///{tmp_path}/shop.db", fresh(), log=False)

    async def scenario() -> None:
        await channel.send([b"x"] * 500)
        times_s: list[float] = []

        async def handle(_: Message) -> None:
            times_s.append(time.monotonic())

        began_s = time.monotonic()
        async with Consumer(channel.url, handler=handle, goal="rate=20", **channel.arguments):
            await until(lambda: len(times_s) >= 40)
        for number, time_s in enumerate(times_s):  # one at once, and at most a fiftieth of a second made up for
            assert time_s - began_s >= (number - 1) / 20

    asyncio.run(scenario())
