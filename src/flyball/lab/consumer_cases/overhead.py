"""What the loop costs at saturation: throughput with a goal beside throughput without, in turns.

Straight to the broker, with handlers that do nothing and a window beyond which throughput does not rise: the
client is the limit. The loop senses, decides and sets the window as always; its controller asks for the same
window, so that only the cost differs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.control.controllers.fixed import Fixed
from flyball.lab.bench import BenchContext, Row
from flyball.lab.consumer_rig import Rig

WINDOW = 200
LOOP: dict[str, Any] = {"goal": "rate=1000000", "controller": Fixed(float(WINDOW))}


def cases(context: BenchContext, rig: Rig) -> Iterator[Row]:
    count, turns = (10_000, 9) if context.quick else (20_000, 30)
    costs: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(turns + 1):
        for looped in (True, False) if turn % 2 else (False, True):
            cost = _cost_s(rig.direct_url, rig.queue(fill=count), count, LOOP if looped else {})
            if turn:  # the first turn warms up
                costs[looped].append(cost)
    without, with_loop = _undisturbed(costs[False]), _undisturbed(costs[True])
    spread = np.quantile(1.0 - np.array(costs[False]) / np.array(costs[True]), [0.25, 0.75])
    context.note(f"  {1e6 * without:.2f} and {1e6 * with_loop:.2f} µs a message; pair by pair {spread.round(3)}")
    yield context.row("loop overhead", max(0.0, 1.0 - without / with_loop), "fraction", goal=0.01)
    yield context.row("throughput at saturation", 1.0 / with_loop, "msg/s")


def _undisturbed(costs: Sequence[float]) -> float:
    """The mean of the lowest third: what others do on the machine can only add to a cost."""
    return float(np.mean(sorted(costs)[: max(1, len(costs) // 3)]))


def _cost_s(url: str, queue: str, count: int, options: dict[str, Any]) -> float:
    """Processor time a message, over the last nine tenths of `count` messages: connecting is not the loop's.

    The client's processor is what limits throughput, and its time is not that of others who use the machine too.
    """
    marks: dict[int, float] = {}
    handed, done = 0, asyncio.Event()
    first = count // 10

    async def handle(_message: Any) -> None:
        nonlocal handed
        handed += 1
        if handed in (first, count):
            marks[handed] = time.process_time()
            if handed == count:
                done.set()

    async def main() -> None:
        async with Consumer(url, queue=queue, handler=handle, window=WINDOW, **options):
            await asyncio.wait_for(done.wait(), 120.0)

    asyncio.run(main())
    return (marks[count] - marks[first]) / (count - first)
