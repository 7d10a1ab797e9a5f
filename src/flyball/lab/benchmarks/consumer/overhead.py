"""What the loop costs at saturation: throughput with a goal beside throughput without, in turns.

Straight to the broker, with handlers that do nothing and a window beyond which throughput does not rise: the
client is the limit. The loop senses, decides and sets the window as always; its controller asks for the same
window, so that only the cost differs.

From pair to pair the ratio varies by several per cent, for broker and client share cores: so the median
of their ratios counts. A run takes over a second, or the loop would not have had its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.control.controllers.fixed import Fixed
from flyball.futures import wait_at_most
from flyball.lab.bench import BenchContext, Row
from flyball.lab.interleave import typical_pair
from flyball.lab.rigs.consumer.rig import Rig

WINDOW = 1000
LOOP: dict[str, Any] = {"goal": "rate=1000000", "controller": Fixed(float(WINDOW))}


def cases(context: BenchContext, rig: Rig) -> Iterator[Row]:
    count, turns = (50_000, 5) if context.quick else (50_000, 40)
    costs: dict[bool, list[_Cost]] = {False: [], True: []}
    for turn in range(turns + 1):
        for looped in (True, False) if turn % 2 else (False, True):
            cost = _cost(rig.direct_url, rig.queue(fill=count), count, LOOP if looped else {})
            if turn:  # the first turn warms up
                costs[looped].append(cost)
    without, with_loop = (1e6 * median(one.processor_s for one in costs[looped]) for looped in (False, True))
    context.note(f"  {without:.2f} and, with the loop, {with_loop:.2f} µs of processor time a message")
    pairs = [(1.0 / ours.wall_s, 1.0 / bare.wall_s) for ours, bare in zip(costs[True], costs[False], strict=True)]
    low, middle, high = np.quantile([ours / bare for ours, bare in pairs], [0.25, 0.5, 0.75])
    context.note(f"  throughput beside that without the loop, quartiles: {low:.3f}, {middle:.3f}, {high:.3f}")
    yield context.row("loop overhead", max(0.0, 1.0 - float(middle)), "fraction", goal=0.01)
    ours, bare = typical_pair(pairs)
    yield context.row("throughput at saturation", ours, "msg/s", peer=bare, peer_name="without the loop")


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of one message."""

    processor_s: float
    wall_s: float


def _cost(url: str, queue: str, count: int, options: dict[str, Any]) -> _Cost:
    """Over the last nine tenths of `count` messages: connecting is not the loop's."""
    marks: dict[int, tuple[float, float]] = {}
    handed, done = 0, asyncio.Event()
    first = count // 10

    async def handle(_message: Any) -> None:
        nonlocal handed
        handed += 1
        if handed in (first, count):
            marks[handed] = (time.process_time(), time.perf_counter())
            if handed == count:
                done.set()

    async def main() -> None:
        async with Consumer(url, queue=queue, handler=handle, window=WINDOW, **options):
            await wait_at_most(done.wait(), 120.0)

    asyncio.run(main())
    processor_s, wall_s = (
        (end - begin) / (count - first) for begin, end in zip(marks[first], marks[count], strict=True)
    )
    return _Cost(processor_s, wall_s)
