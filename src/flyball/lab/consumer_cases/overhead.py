"""What the loop costs at saturation: throughput with a goal beside throughput without, in turns.

Straight to the broker, with handlers that do nothing and a window beyond which throughput does not rise: the
client is the limit. The loop senses, decides and sets the window as always; its controller asks for the same
window, so that only the cost differs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.control.controllers.fixed import Fixed
from flyball.lab.bench import BenchContext, Row
from flyball.lab.consumer_rig import Rig

WINDOW = 200
LOOP: dict[str, Any] = {"goal": "rate=1000000", "controller": Fixed(float(WINDOW))}


def cases(context: BenchContext, rig: Rig) -> Iterator[Row]:
    count, turns = (8_000, 7) if context.quick else (20_000, 15)
    costs = []
    for turn in range(turns + 1):
        cost = {}
        for looped in (True, False) if turn % 2 else (False, True):
            cost[looped] = _cost_s(rig.direct_url, rig.queue(fill=count), count, LOOP if looped else {})
        if turn:  # the first turn warms up
            costs.append((cost[False], cost[True]))
    without, looped = np.array(costs).T
    lost = 1.0 - without / looped  # of each pair of turns: both saw nearly the same machine
    low, high = np.quantile(lost, [0.25, 0.75])
    context.note(f"  loop overhead: quartiles of {turns} pairs {low:.4f} and {high:.4f}")
    yield context.row("loop overhead", max(0.0, float(np.median(lost))), "fraction", goal=0.01)
    yield context.row("throughput at saturation", 1.0 / float(np.median(looped)), "msg/s")


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
