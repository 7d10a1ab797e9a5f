"""The demo's consumer: a program that reads the events at a goal, and the goal changes while it runs.

Its handler takes 10 ms, as a call to another service would. The window that a goal needs follows from that by
Little's law (200 a second × 10 ms = 2 in flight); the consumer finds it by measuring.

A phase has a result only once the loop has settled: when for several samples in a row the window has rested and
their mean rate is near the goal. The samples after those are summarised, until a disturbance (Spark stops, the CPU
load comes or goes) moves the window again; if those were too few, the loop has to settle once more.
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
_NEAR = 0.03  # relative error of the mean rate at which the loop counts as settled
_REST = 1.1  # widest window as a multiple of the narrowest, up to which the window rests
_IN_A_ROW = 6  # samples for which both must hold
_ENOUGH = 10  # samples after settling
_LEAST = 5  # samples after settling below which there is no result
_LONGEST_AFTER_S = 12.0  # the longest wait for a goal after the input has ended
_FRESH_S = 1.0  # after that, the depth that the consumer reports was measured after the input had ended


@dataclass(frozen=True, slots=True)
class Phase:
    """How a goal was met while the loop was settled, from sample `settled_after` on; None: it did not settle."""

    goal_per_s: float
    settled_after: int | None
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
    """Wait for enough samples after settling; after the end of the input only briefly, while messages are left."""
    left_s = _LONGEST_AFTER_S
    while summarise_phase(consumer.steps(), goal).samples < _ENOUGH and left_s > 0.0:
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


def find_settled(rates_per_s: Sequence[float], windows: Sequence[float], goal_per_s: float) -> range:
    """The samples after settling and before the next disturbance: the first that are enough, else the most.

    >>> rates = [60.0, 120.0, 180.0, 198.0, 204.0, 199.0, 201.0, 203.0, 197.0, 202.0, 200.0, 201.0, 198.0, 150.0]
    >>> windows = [1.0, 2.0, *[2.4] * 11, 3.0]
    >>> find_settled(rates, windows, 200.0)  # from the third to the eighth: 197.5 on average
    range(8, 13)
    >>> find_settled([166.0] * 40, [2.0] * 40, 200.0)
    range(0, 0)
    """
    longest = range(0)
    for first in range(len(rates_per_s) - _IN_A_ROW):
        after = first + _IN_A_ROW
        error = fmean(rates_per_s[first:after]) / goal_per_s - 1.0
        if abs(error) > _NEAR or not _rests(windows[first:after]):
            continue
        end = after
        while end < len(windows) and _rests(windows[first : end + 1]):
            end += 1
        if end - after > len(longest):
            longest = range(after, end)
        if len(longest) >= _ENOUGH:
            break
    return longest if len(longest) >= _LEAST else range(0)


def _rests(windows: Sequence[float]) -> bool:
    return max(windows) <= _REST * min(windows)


def summarise_phase(steps: Sequence[LoopRecord], goal: float) -> Phase:
    """Summarise the steps at one goal while the loop was settled.

    >>> summarise_phase([], 200.0)
    Phase(goal_per_s=200.0, settled_after=None, samples=0, mean_per_s=None, std_per_s=None, window=None)
    """
    counted = [step for step in steps if _counts(step, goal)]
    rates = [as_scalar(step.measurement or 0.0) for step in counted]
    windows = [as_scalar(step.command or 0.0) for step in counted]
    settled = find_settled(rates, windows, goal)
    if not settled:
        return Phase(goal, None, 0, None, None, None)
    rates, windows = [rates[k] for k in settled], [windows[k] for k in settled]
    figures = round(fmean(rates), 1), round(pstdev(rates), 1), round(fmean(windows), 2)
    return Phase(goal, settled.start, len(settled), *figures)
