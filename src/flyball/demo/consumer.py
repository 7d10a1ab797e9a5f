"""The demo's consumer: a program that reads the events at a goal, and the goal changes while it runs.

Its handler takes 10 ms, as a call to another service would. The window that a goal needs follows from that by
Little's law (200 a second × 10 ms = 2 in flight); the consumer finds it by measuring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from flyball.brokers import Message, connect
from flyball.consumer.consumer import Consumer
from flyball.control.controllers.common import as_scalar
from flyball.control.record import LoopRecord
from flyball.control.step import ReasonCode

GOALS_PER_S = (200.0, 500.0)
WORK_S = 0.01
_PERIOD_S = 0.5
_TRANSIENT = 3  # samples after a change of the goal that are left out
_ENOUGH = 8  # samples of a phase
_LONGEST_AFTER_S = 2.5  # the longest wait for a goal after the input has ended
_FRESH_S = 1.0  # after that, the depth that the consumer reports was measured after the input had ended


@dataclass(frozen=True, slots=True)
class Phase:
    """How a goal was met, without the first samples; None: the phase ended before there was a measurement."""

    goal_per_s: float
    samples: int
    mean_per_s: float | None
    std_per_s: float | None
    window: float | None


@dataclass(frozen=True, slots=True)
class ConsumerSummary:
    handled: int
    phases: tuple[Phase, ...]


async def consume_at_goals(
    url: str, channel: str, input_ended: asyncio.Event, say: Callable[[str], None]
) -> ConsumerSummary:
    """Read `channel` at one goal after the other until the input ends, or until each goal had enough samples."""
    async with await connect(url) as broker:
        await broker.declare(channel, "log")
    consumer = Consumer(
        url,
        channel=channel,
        group="demo-reader",
        handler=_look_up,
        goal=f"rate={GOALS_PER_S[0]:g}",
        period_s=_PERIOD_S,
    )
    async with consumer:
        for goal in GOALS_PER_S:
            consumer.goal = f"rate={goal:g}"
            say(f"a consumer of the events is to take {goal:g} a second")
            await _wait_for_samples(consumer, goal, input_ended)
        await input_ended.wait()
    steps = consumer.steps()
    return ConsumerSummary(consumer.stats.acked, tuple(summarise_phase(steps, goal) for goal in GOALS_PER_S))


async def _look_up(_: Message) -> None:
    await asyncio.sleep(WORK_S)


async def _wait_for_samples(consumer: Consumer, goal: float, input_ended: asyncio.Event) -> None:
    """Wait for enough samples at a goal; after the end of the input only briefly and while messages are left."""
    left_s = _LONGEST_AFTER_S
    while sum(_counts(step, goal) for step in consumer.steps()) < _ENOUGH and left_s > 0.0:
        await asyncio.sleep(_PERIOD_S / 4)
        if input_ended.is_set():
            left_s -= _PERIOD_S / 4
            caught_up = consumer.stats.depth == 0.0 and left_s < _LONGEST_AFTER_S - _FRESH_S
            left_s = 0.0 if caught_up else left_s


def _counts(step: LoopRecord, goal: float) -> bool:
    """Whether it is a sample at this goal in which messages were waiting."""
    measured = isinstance(step.measurement, float) and step.measurement > 0.0
    has_messages = measured and step.code is not ReasonCode.STARVED
    return has_messages and step.setpoint == goal and isinstance(step.command, float)


def summarise_phase(steps: Sequence[LoopRecord], goal: float) -> Phase:
    """Summarise the steps at one goal.

    >>> summarise_phase([], 200.0)
    Phase(goal_per_s=200.0, samples=0, mean_per_s=None, std_per_s=None, window=None)
    """
    counted = [step for step in steps if _counts(step, goal)][_TRANSIENT:]
    if not counted:
        return Phase(goal, 0, None, None, None)
    rates = [as_scalar(step.measurement or 0.0) for step in counted]
    windows = [as_scalar(step.command or 0.0) for step in counted]
    return Phase(goal, len(counted), round(fmean(rates), 1), round(pstdev(rates), 1), round(fmean(windows), 2))
