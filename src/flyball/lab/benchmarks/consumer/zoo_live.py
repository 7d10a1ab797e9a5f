"""Scenarios of the zoo live on the embedded broker, beside the twin: does the twin tell the truth?

Scenarios of at most `MOST_PER_S` messages a second, so that ten of them run at once in one process without being
short of processor time; without what only the twin can do (outages, several consumers, distorted metrics). The
twin runs the same plant, with the replacement time of the embedded broker for a network, on the same random
numbers. Judged is the mean rate from the tenth sample on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flyball.brokers import connect
from flyball.consumer.consumer import Consumer
from flyball.control.record import LoopRecord
from flyball.lab.bench import BenchContext, Row
from flyball.message import Message
from flyball.testing.zoo import Scenario, run, scenario
from flyball.testing.zoo.judge import START
from flyball.twin.consumer_plant import ConsumerPlant, Draws

MOST_PER_S = 50.0
AT_ONCE = 10
REPLACEMENT_S = 0.0012
"""Measured on the embedded broker: from an acknowledgement to the next message in its slot."""
_WITHIN = 0.1
_BATCH = 200


class _Poison(Exception):
    """The handler fails at this message, whenever it is tried."""


@dataclass(frozen=True)
class _Pair:
    name: str
    live_per_s: float
    twin_per_s: float

    @property
    def ratio(self) -> float:
        return self.live_per_s / self.twin_per_s


class _Counts:
    """A telemetry sink that counts, at each sample of the loop, what was handed to the handler."""

    waits_for_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        self.handed = 0
        self.dropped = 0
        self.counts: list[tuple[float, int]] = []

    def write(self, records: Sequence[LoopRecord]) -> None:
        self.counts += [(time.monotonic(), self.handed)] * len(records)

    def flush(self) -> None: ...


def cases(context: BenchContext) -> Iterator[Row]:
    chosen = choose(6 if context.quick else 20, context.seed)
    samples = 30 if context.quick else 75
    pairs: list[_Pair] = []
    for first in range(0, len(chosen), AT_ONCE):
        batch = [replace(one, samples=samples) for one in chosen[first : first + AT_ONCE]]
        live = asyncio.run(_run_all(batch, context.workdir))
        for one, live_per_s in zip(batch, live, strict=True):
            pairs.append(_Pair(one.name, live_per_s, float(run(one).rate[START:].mean())))
            context.note(f"  {one.name}: live {live_per_s:.3g}/s, twin {pairs[-1].twin_per_s:.3g}/s")
    ratios = np.array([pair.ratio for pair in pairs])
    yield context.row("zoo live scenarios", float(len(pairs)), "scenarios")
    yield context.row("zoo live / twin rate, median", float(np.median(ratios)), "ratio")
    yield context.row("zoo live / twin rate, lowest", float(ratios.min()), "ratio")
    yield context.row("zoo live / twin rate, highest", float(ratios.max()), "ratio")
    within = float((np.abs(ratios - 1.0) <= _WITHIN).mean())
    yield context.row("zoo live within 10 % of the twin", within, "fraction")


def choose(count: int, seed: int) -> list[Scenario]:
    """The first scenarios of a seed that can run live, on a plant like the embedded broker's."""
    chosen: list[Scenario] = []
    number = 1000 * seed
    while len(chosen) < count:
        one = scenario(number)
        number += 1
        if one.consumers == 1 and not one.sensors() and not one.plant.outages and one.capacity_per_s <= MOST_PER_S:
            plant = replace(
                one.plant,
                round_trip_s=0.0,
                replacement_s=REPLACEMENT_S,
                wander=0.0,
                stalls_per_s=0.0,
                client_s=0.0,
            )
            chosen.append(replace(one, plant=plant))
    return chosen


async def _run_all(batch: Sequence[Scenario], folder: Path) -> list[float]:
    return list(await asyncio.gather(*(_run_live(one, folder) for one in batch)))


async def _run_live(one: Scenario, folder: Path) -> float:
    """The mean rate from the tenth sample on."""
    url, plant, counts = f"sqlite:///{folder / f'zoo-{one.seed}.db'}", one.plant, _Counts()
    rng = np.random.default_rng(one.seed)
    queue_rng = rng.spawn(1)[0]
    draws = Draws(plant, rng)  # the random numbers of the twin, in its order
    begin_s = time.monotonic()
    failing: set[str] = set()

    async def handle(message: Message) -> None:
        work_s = draws.handling_s(time.monotonic() - begin_s)
        if message.id not in failing:
            counts.handed += 1
            if draws.fails():
                failing.add(message.id)
        await asyncio.sleep(work_s)
        if message.id in failing:
            raise _Poison

    async with await connect(url) as broker:
        await broker.declare("zoo")
        sender = await broker.sender("zoo")
        arrivals = _arrivals(one, queue_rng)
        due_s = next(arrivals)

        async def publish(until_s: float) -> None:
            nonlocal due_s
            batch: list[Message] = []
            while due_s <= until_s:
                batch.append(Message(b"x", event_time_s=time.time()))
                due_s = next(arrivals)
                if len(batch) == _BATCH:
                    await sender.send_batch(batch)
                    batch = []
            if batch:
                await sender.send_batch(batch)

        await publish(0.0)
        begin_s = time.monotonic()
        options: dict[str, Any] = {"goal": one.goal_at(0.0), "concurrency": plant.handlers}
        async with Consumer(url, queue="zoo", handler=handle, telemetry=[counts], **options) as consumer:
            while len(counts.counts) <= one.samples:
                await asyncio.sleep(0.05)
                passed_s = time.monotonic() - begin_s
                await publish(passed_s)
                if consumer.goal != one.goal_at(passed_s):
                    consumer.goal = one.goal_at(passed_s)
    (first_s, first), (last_s, last) = counts.counts[START], counts.counts[one.samples]
    return (last - first) / (last_s - first_s)


def _arrivals(one: Scenario, rng: np.random.Generator) -> Iterator[float]:
    """When messages are published; where there is always more, enough at the start."""
    plant: ConsumerPlant = one.plant
    if plant.publishers is None:
        yield from [0.0] * int(1.5 * one.capacity_per_s * one.samples + 100)
        yield float("inf")
    else:
        yield from plant.publishers.arrivals(rng)
