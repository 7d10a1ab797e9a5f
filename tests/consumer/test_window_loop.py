"""The loop by itself, and on a real queue behind a slow network: what an empty queue may teach it, and not."""

from __future__ import annotations

import asyncio
import statistics
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.consumer.policy.controller import DITHER_S, guard_for
from flyball.consumer.policy.goals import Goal, Rate
from flyball.consumer.policy.knee import Knee
from flyball.consumer.policy.little import Little
from flyball.consumer.window_loop import WindowLoop
from flyball.control.record import LoopRecord
from flyball.loops.runner import Runner
from flyball.servers.ports import LOOPBACK
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.clock import VirtualClock

ONE_WAY_S = 0.02
RESIDENCE_S = 0.02


def window_loop(goal: Goal, now: Callable[[], float], **options: Any) -> WindowLoop:
    return WindowLoop("orders", goal, now=now, limits=(0.05, 100.0), window=1.0, **options)


def tick(loop: WindowLoop) -> None:
    """50 ms of a plant that always has messages, each of which takes 20 ms of its slot."""
    for _ in range(round(loop.next_window() * DITHER_S / RESIDENCE_S)):
        loop.metrics.handed += 1
        loop.metrics.add_finished(RESIDENCE_S, None)
    loop.metrics.tick(full=True, round_trip_s=0.0)


class VirtualTime:
    """Drives a loop as `regulate` does: whatever happens, the sample is taken when it is due."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def drive(self, loop: WindowLoop, samples: int) -> list[LoopRecord]:
        steps = []
        for _ in range(samples):
            steps.append(loop.sample())
            for _ in range(20):
                tick(loop)
            self._now_s += 1.0
        return steps


def test_it_makes_the_same_steps_whoever_drives_it() -> None:
    by_hand = VirtualTime()
    steps = by_hand.drive(window_loop(Rate(400.0), by_hand.now), 12)
    clock = VirtualClock()
    loop = window_loop(Rate(400.0), clock.now)
    runner = Runner([loop.loop], clock=clock)

    async def scenario() -> None:
        running = asyncio.create_task(runner.run(samples=12))
        for number in range(1, 12):
            await clock.sleep_until(number - 0.5)
            for _ in range(20):
                tick(loop)
        await running

    clock.run(scenario())
    assert [step.command for step in runner.records()] == [step.command for step in steps]
    assert [step.setpoint for step in steps] == [400.0] * 12
    assert steps[-1].command == pytest.approx(400.0 * RESIDENCE_S, rel=0.02)


def test_a_goal_of_another_kind_changes_the_controller_and_its_guard() -> None:
    by_hand = VirtualTime()
    loop = window_loop(Rate(400.0), by_hand.now)
    by_hand.drive(loop, 8)
    loop.goal = "capacity"
    assert isinstance(loop.loop.controller, Knee)
    assert loop.loop.guard == guard_for(loop.loop.controller) != guard_for(Little())
    (step,) = by_hand.drive(loop, 1)
    assert step.command is not None
    loop.goal = "rate=200"
    steps = by_hand.drive(loop, 8)
    assert {step.setpoint for step in steps} == {200.0}
    assert steps[-1].command == pytest.approx(200.0 * RESIDENCE_S, rel=0.1)


def test_a_pace_stands_for_less_than_one_message() -> None:
    by_hand = VirtualTime()
    loop = window_loop(Rate(10.0), by_hand.now, pacing="below one")
    assert loop.pace_per_s == 10.0  # the residence time is not known yet
    by_hand.drive(loop, 4)
    assert loop.window < 1.0
    assert loop.next_window() == 1
    assert loop.pace_per_s == pytest.approx(10.0, rel=0.1)
    assert loop.wait_s == 0.0
    loop.use_pace()
    assert loop.wait_s == pytest.approx(0.1, rel=0.1)
    loop.goal = Rate(400.0)
    by_hand.drive(loop, 4)
    assert [loop.pace_per_s, loop.wait_s] == [None, 0.0]


def test_the_wait_for_publishers_does_not_widen_the_window(rabbitmq: RabbitMqNode) -> None:
    """Publishers send a quarter of the goal: an acknowledgement is followed by a message only when one comes."""

    async def scenario(port: int) -> None:
        name = f"drought.{uuid.uuid4().hex[:8]}"

        async def handle(_: Message) -> None: ...

        async with await connect(rabbitmq.url) as broker:
            await broker.declare(name)
            sender = await broker.sender(name)
            consumer = Consumer(
                f"amqp://guest:guest@{LOOPBACK}:{port}/",
                queue=name,
                handler=handle,
                goal="rate=400",
                period_s=0.25,
            )
            async with consumer:
                took_s: list[float] = []
                while len(consumer.steps()) < 24:
                    await sender.send_batch([Message(b"now and then"), Message(b"and again")])
                    await asyncio.sleep(0.015)
                    if (residence_s := consumer.stats.residence_s) is not None:
                        took_s.append(residence_s)
                assert "the queue had no more" in consumer.status
                # the round trip, and not the 0.2 s that a slot of such a window stays empty
                assert statistics.median(took_s[len(took_s) // 2 :]) < 4 * ONE_WAY_S

    with FaultProxy(rabbitmq.ports.amqp, delay_s=ONE_WAY_S) as proxy:
        asyncio.run(scenario(proxy.port))
