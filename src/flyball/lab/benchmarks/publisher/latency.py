"""Latency: `auto` from every initial N beside the best static setting for that load and round trip.

The best static setting is found by a sweep over N × T_poll (settings that carry less than the load are left out:
they diverge): what is far worse than the best after a second is dropped, the rest is measured at full length.
Then the best one and `auto` take turns under the same arrivals, and medians over the turns are compared;
`batch-aimd`, of which nothing is asked, has one turn. At low load `auto` is also held against a bare confirmed
publish plus the outbox's commit.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

import numpy as np

from flyball.brokers import Message, connect
from flyball.control.controllers.publishing.static import Static
from flyball.control.step import Controller
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.publisher.traffic import BODY, channel, delayed_url, latencies_s, poisson_s
from flyball.publisher.handle import Handle
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.store import Outbox, SqliteDatabase
from flyball.store.outbox import USUAL
from flyball.twin.publisher import run_publisher, tuned
from flyball.twin.workload import Poisson

Setting: TypeAlias = tuple[str | Controller[Any], int]
"""A controller and the initial N."""

_SIZES = (1, 10, 50, 500)
_POLLS_S = (0.0, 0.005, 0.05, 0.2)
_NEAR_MS = 3.0
_SKIP_S = 0.5
_FIRST_LOOK_S = _SKIP_S + 1.0
_FAR_WORSE = 1.5
_MOST_FINALISTS = 4
_TURNS = 3
_UNDISTURBING_LOAD = 200.0
"""Messages a second up to which publishers that are measured at the same time do not disturb each other."""


class Measure(Protocol):
    def __call__(
        self, settings: Sequence[Setting], concurrent: int = ..., until_s: float = ...
    ) -> list[list[float]]: ...


def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    yield from _twin(context)
    yield from _low_load(context, node)
    cells = [(load, trip_s) for trip_s in (0.0, 0.013, 0.14) for load in (17.5, 55.0, 500.0, 2000.0)]
    for load, round_trip_s in [(500.0, 0.0), (2000.0, 0.14)] if context.quick else cells:
        yield from _cell(context, node, load, round_trip_s)


def _cell(context: BenchContext, node: RabbitMqNode, load: float, round_trip_s: float) -> Iterator[Row]:
    duration_s = 2.5 if context.quick else max(3.0, min(6.0, 200.0 / load))
    times_s = poisson_s(load, duration_s, context.seed)
    where = f"{load:g}/s {_trip(round_trip_s)}"
    with delayed_url(node, round_trip_s) as (url, _):

        async def measure(settings: Sequence[Setting], until_s: float) -> list[list[float]]:
            """Measure the latencies under each setting, all at the same time, with interleaved arrivals."""
            apart_s = 1.0 / load / len(settings)
            return await asyncio.gather(
                *(
                    latencies_s(
                        node,
                        url,
                        context.workdir,
                        [at_s + number * apart_s for at_s in times_s if at_s < until_s],
                        controller=controller,
                        batch=batch,
                        skip_s=_SKIP_S,
                    )
                    for number, (controller, batch) in enumerate(settings)
                )
            )

        def measured(
            settings: Sequence[Setting], concurrent: int = 1, until_s: float = math.inf
        ) -> list[list[float]]:
            parts = (settings[begin : begin + concurrent] for begin in range(0, len(settings), concurrent))
            return [one for part in parts for one in asyncio.run(measure(part, until_s))]

        concurrent = max(1, int(_UNDISTURBING_LOAD / load))
        best = _best_static(context, load, measured, concurrent)
        context.note(f"  {where}: best static N {best.batch}, T_poll {1000 * best.poll_s:g} ms")
        sizes = (50,) if context.quick else _SIZES
        latencies: dict[tuple[str, int], list[list[float]]] = {}
        for turn in range(_TURNS):
            settings: dict[tuple[str, int], Setting] = {("best", 0): (best, 1)}
            for name in ("auto", "batch-aimd") if turn == 0 else ("auto",):
                settings |= {(name, size): (name, size) for size in sizes}
            # Directly a message takes a few milliseconds: there even a light load beside it shows.
            found = measured(list(settings.values()), concurrent if round_trip_s else 1)
            for key, one in zip(settings, found, strict=True):
                latencies.setdefault(key, []).append(one)
    for what, share, goal in (("mean", None, 1.1), ("p99", 0.99, 1.3)):
        peer = _median_ms(latencies["best", 0], share)
        for name in ("auto", "batch-aimd"):
            for size in sizes:
                yield context.row(
                    f"latency {what} {where} N {size}" + ("" if name == "auto" else " s4"),
                    _median_ms(latencies[name, size], share),
                    "ms",
                    peer=peer,
                    peer_name=f"static N {best.batch} T_poll {1000 * best.poll_s:g} ms",
                    goal=goal if name == "auto" else None,
                )


def _best_static(context: BenchContext, load: float, measured: Measure, concurrent: int) -> Static:
    """Find the setting with the smallest mean among those that carry the load."""
    controllers = [
        Static(batch=size, poll_s=poll_s)
        for poll_s in _POLLS_S
        for size in ((1, 50) if context.quick else _SIZES)
        if not poll_s or size / poll_s > 1.05 * load
    ]
    first_s = [
        statistics.fmean(one)
        for one in measured([(controller, 1) for controller in controllers], concurrent, _FIRST_LOOK_S)
    ]
    order = sorted(range(len(controllers)), key=lambda at: first_s[at])
    finalists = [controllers[at] for at in order[:_MOST_FINALISTS] if first_s[at] <= _FAR_WORSE * min(first_s)]
    means_s = [statistics.fmean(one) for one in measured([(controller, 1) for controller in finalists])]
    return finalists[means_s.index(min(means_s))]


def _twin(context: BenchContext) -> Iterator[Row]:
    """Measure 1.75/s in the twin, round trip 140 ms: live it would take minutes a setting."""
    duration_s, seeds = (60.0, 2) if context.quick else (300.0, 5)

    def means_s(controller: Controller[Any], batch: int = 1) -> list[float]:
        return [
            run_publisher(
                controller, Poisson(1.75), seed=context.seed + k, duration_s=duration_s, batch=batch
            ).mean_s
            for k in range(seeds)
        ]

    swept = {
        (size, poll_s): statistics.fmean(means_s(Static(batch=size, poll_s=poll_s)))
        for size in _SIZES
        for poll_s in _POLLS_S
        if not poll_s or size / poll_s > 1.75
    }
    size, poll_s = min(swept, key=lambda key: swept[key])
    for name, goal in (("auto", 1.1), ("batch-aimd", None)):
        for initial in (50,) if context.quick else _SIZES:
            yield context.row(
                f"latency mean 1.75/s twin 140 ms N {initial}" + ("" if name == "auto" else " s4"),
                1000 * statistics.fmean(means_s(tuned(name), initial)),
                "ms",
                peer=1000 * swept[size, poll_s],
                peer_name=f"static N {size} T_poll {1000 * poll_s:g} ms",
                goal=goal,
            )


def _low_load(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    """Measure what `auto` adds to a bare confirmed publish plus a commit of the outbox, alternately."""
    times_s = poisson_s(17.5, 3.0 if context.quick else 5.0, context.seed)
    ours, bare = [], []
    for _ in range(3 if context.quick else 5):
        bare.append(asyncio.run(_bare_ms(context, node, times_s)))
        found = asyncio.run(latencies_s(node, node.amqp_url, context.workdir, times_s, controller="auto"))
        ours.append(1000 * statistics.fmean(found))
    added = statistics.median(ours) - statistics.median(bare)
    context.note(f"  low load: auto {statistics.median(ours):.2f} ms, bare {statistics.median(bare):.2f} ms")
    yield context.row("latency overhead 17.5/s direct", added, "ms", goal=_NEAR_MS)


async def _bare_ms(context: BenchContext, node: RabbitMqNode, times_s: list[float]) -> float:
    """Measure one commit, then one confirmed publish, at the same times at which the publisher publishes."""
    seconds: list[float] = []
    database = SqliteDatabase(context.workdir / f"{uuid4().hex}.db")
    outbox = Outbox(database)
    async with channel(node) as name, await connect(node.amqp_url) as broker:
        sender = await broker.sender(name)
        await sender.send_batch([Message(BODY)])
        start_s = time.perf_counter()
        for at_s in times_s:
            await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
            message = Message(BODY)
            called_s = time.perf_counter()
            await asyncio.to_thread(outbox.append, [Handle(message, name, USUAL, len(BODY))])
            (result,) = await sender.send_batch([message])
            assert result.ok
            seconds.append(time.perf_counter() - called_s)
    database.close()
    return 1000 * statistics.fmean(seconds)


def _median_ms(turns: list[list[float]], share: float | None) -> float:
    values = [statistics.fmean(one) if share is None else float(np.quantile(one, share)) for one in turns]
    return 1000 * statistics.median(values)


def _trip(round_trip_s: float) -> str:
    return f"{1000 * round_trip_s:g} ms" if round_trip_s else "direct"
