"""The demo's consumer: a program that reads the events at a goal, and the goal changes while it runs.

Its handler takes 10 ms, as a call to another service would; the window that the goals need follows from that
(Little's law: 200 a second × 10 ms = 2 in flight), and nobody tells it to the consumer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from flyball.brokers import Message, connect
from flyball.consumer.consumer import Consumer
from flyball.control.controllers.common import as_scalar
from flyball.control.step import ReasonCode
from flyball.loops.policy import Receipt

GOALS_PER_S = (200.0, 500.0)
WORK_S = 0.01
_PERIOD_S = 0.5
_SETTLING = 3  # samples of a phase that belong to its beginning
_ENOUGH = 8  # samples of a phase
_LONGEST_AFTER_S = 2.5  # what the demo waits for each goal when everything else has ended
_FRESH_S = 1.0  # after that, what the consumer knows of the queue is no older than the end


@dataclass(frozen=True, slots=True)
class Phase:
    """How a goal was held, without its first samples; None: it ended before there was anything to say."""

    goal_per_s: float
    samples: int
    mean_per_s: float | None
    std_per_s: float | None
    window: float | None


@dataclass(frozen=True, slots=True)
class Consumed:
    handled: int
    phases: tuple[Phase, ...]


async def consume_at_goals(url: str, channel: str, over: asyncio.Event, say: Callable[[str], None]) -> Consumed:
    """Read `channel` at one goal after the other until `over`, and a moment longer for goals that came short."""
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
            await _held(consumer, goal, over)
        await over.wait()
    receipts = consumer.steps()
    return Consumed(consumer.stats.acked, tuple(phase(receipts, goal) for goal in GOALS_PER_S))


async def _look_up(_: Message) -> None:
    await asyncio.sleep(WORK_S)


async def _held(consumer: Consumer, goal: float, over: asyncio.Event) -> None:
    """Until enough was seen of a goal; when all else is over, not for long, and only while messages are left."""
    left_s = _LONGEST_AFTER_S
    while _fed(consumer.steps(), goal) < _ENOUGH and left_s > 0.0:
        await asyncio.sleep(_PERIOD_S / 4)
        if over.is_set():
            left_s -= _PERIOD_S / 4
            caught_up = consumer.stats.depth == 0.0 and left_s < _LONGEST_AFTER_S - _FRESH_S
            left_s = 0.0 if caught_up else left_s


def _fed(receipts: Sequence[Receipt], goal: float) -> int:
    """Samples at this goal in which messages were there."""
    return sum(_counts(receipt, goal) for receipt in receipts)


def _counts(receipt: Receipt, goal: float) -> bool:
    measured = isinstance(receipt.measurement, float) and receipt.measurement > 0.0
    fed = measured and receipt.code is not ReasonCode.STARVED
    return fed and receipt.setpoint == goal and isinstance(receipt.command, float)


def phase(receipts: Sequence[Receipt], goal: float) -> Phase:
    """What the receipts say of one goal.

    >>> phase([], 200.0)
    Phase(goal_per_s=200.0, samples=0, mean_per_s=None, std_per_s=None, window=None)
    """
    kept = [receipt for receipt in receipts if _counts(receipt, goal)][_SETTLING:]
    if not kept:
        return Phase(goal, 0, None, None, None)
    rates = [as_scalar(receipt.measurement or 0.0) for receipt in kept]
    windows = [as_scalar(receipt.command or 0.0) for receipt in kept]
    return Phase(goal, len(kept), round(fmean(rates), 1), round(pstdev(rates), 1), round(fmean(windows), 2))
