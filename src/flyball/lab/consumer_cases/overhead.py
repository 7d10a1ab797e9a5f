"""What the loop costs at saturation: throughput with a goal beside throughput without, in turns.

Straight to the broker, with handlers that do nothing and a window beyond which throughput does not rise: the
client is the limit. The loop senses, decides and sets the window as always; its controller asks for the same
window, so that only the cost differs.

The overhead is judged by the processor time of a message, which is what limits such a client. Throughput by the
clock stands beside it: from pair to pair its ratio varies by several per cent, for broker and client share cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.control.controllers.fixed import Fixed
from flyball.lab.bench import BenchContext, Row
from flyball.lab.consumer_rig import Rig
from flyball.lab.turns import typical_pair

WINDOW = 1000
LOOP: dict[str, Any] = {"goal": "rate=1000000", "controller": Fixed(float(WINDOW))}


def cases(context: BenchContext, rig: Rig) -> Iterator[Row]:
    count, turns = (30_000, 5) if context.quick else (60_000, 30)
    costs: dict[bool, list[_Cost]] = {False: [], True: []}
    for turn in range(turns + 1):
        for looped in (True, False) if turn % 2 else (False, True):
            cost = _cost(rig.direct_url, rig.queue(fill=count), count, LOOP if looped else {})
            if turn:  # the first turn warms up
                costs[looped].append(cost)
    without, with_loop = (_undisturbed([one.processor_s for one in costs[looped]]) for looped in (False, True))
    context.note(f"  {1e6 * without:.2f} and {1e6 * with_loop:.2f} µs of processor time a message")
    yield context.row("loop overhead", max(0.0, 1.0 - without / with_loop), "fraction", goal=0.01)
    pairs = [(1.0 / ours.wall_s, 1.0 / bare.wall_s) for ours, bare in zip(costs[True], costs[False], strict=True)]
    spread = np.quantile([ours / bare for ours, bare in pairs], [0.25, 0.75])
    context.note(f"  by the clock, pair by pair: {spread.round(3)} of the throughput without")
    ours, bare = typical_pair(pairs)
    yield context.row("throughput at saturation", ours, "msg/s", peer=bare, peer_name="without the loop")


@dataclass(frozen=True, slots=True)
class _Cost:
    """Of one message."""

    processor_s: float
    wall_s: float


def _undisturbed(costs: Sequence[float]) -> float:
    """The mean of the lowest third: what others do on the machine can only add to a cost."""
    return float(np.mean(sorted(costs)[: max(1, len(costs) // 3)]))


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
            await asyncio.wait_for(done.wait(), 120.0)

    asyncio.run(main())
    processor_s, wall_s = (
        (end - begin) / (count - first) for begin, end in zip(marks[first], marks[count], strict=True)
    )
    return _Cost(processor_s, wall_s)
