"""Changes: recovery after a burst and after steps of the load, and urgent messages under a burst of others."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Iterator
from uuid import uuid4

import numpy as np

from flyball import Publisher
from flyball.lab.bench import BenchContext, Row
from flyball.lab.experiments.publisher_steps import PROFILE, recovery_s
from flyball.lab.rigs.publisher.traffic import Timed, channel, delayed_url, offer, poisson_s
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.twin.publisher import run_publisher, tuned
from flyball.twin.workload import Steps

_LONGEST_POLL_S = 0.0  # `auto` does not poll: the round trip alone counts
_BIN = 8


def cases(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    yield from _steps_in_the_twin(context)
    for round_trip_s in (0.013,) if context.quick else (0.013, 0.14):
        with delayed_url(node, round_trip_s) as (url, _):
            recoveries_s = [
                asyncio.run(_after_burst_s(context, node, url, context.seed + turn))
                for turn in range(3 if context.quick else 5)
            ]
            trips = statistics.median(recoveries_s) / max(_LONGEST_POLL_S, round_trip_s)
            yield context.row(f"recovery burst 50x {1000 * round_trip_s:g} ms", trips, "round trips", goal=5.0)
    if not context.quick:
        with delayed_url(node, 0.14) as (url, _):
            trips = asyncio.run(_after_steps_s(context, node, url)) / 0.14
            yield context.row("recovery steps 10x 140 ms", trips, "round trips", goal=5.0)
    yield from _urgent(context, node)


def _steps_in_the_twin(context: BenchContext) -> Iterator[Row]:
    faster = 10.0 if context.quick else 1.0
    profile = tuple((start_s / faster, load) for start_s, load in PROFILE)
    end_s = 1000.0 / faster
    runs = [
        run_publisher(tuned("auto"), Steps(profile), seed=context.seed + k, duration_s=end_s)
        for k in range(3 if context.quick else 5)
    ]
    ends = [start_s for start_s, _ in profile[1:]] + [end_s]
    worst_s = 0.0
    for (start_s, _), until_s in list(zip(profile, ends, strict=True))[1:]:
        late = [
            run.response_s[(run.arrival_s >= (start_s + until_s) / 2) & (run.arrival_s < until_s - 1)]
            for run in runs
        ]
        worst_s = max(worst_s, recovery_s(runs, start_s, float(np.concatenate(late).mean())))
    yield context.row("recovery steps twin 140 ms", worst_s / 0.14, "round trips", goal=5.0)


async def _after_burst_s(context: BenchContext, node: RabbitMqNode, url: str, seed: int) -> float:
    """Measure the time from the end of the backlog of a burst, 50 × the load of 40/s, until settled again."""
    times_s = [(at_s, 0) for at_s in poisson_s(40.0, 5.0, seed)]
    times_s += [(2.0 + at_s, 1) for at_s in poisson_s(50 * 40.0, 0.5, seed)]
    times_s.sort()
    async with channel(node) as name:
        outbox = context.workdir / f"{uuid4().hex}.db"
        async with Publisher(url, channel=name, outbox=outbox) as publisher:
            timed = await offer(publisher, [at_s for at_s, _ in times_s])
    settled_s = statistics.median([one.latency_s for one in timed if 0.5 <= one.called_s < 2.0])
    backlog_end_s = max(one.called_s + one.latency_s for one in timed if one.called_s < 2.5)
    return _recovery_s(timed, backlog_end_s, settled_s)


async def _after_steps_s(context: BenchContext, node: RabbitMqNode, url: str) -> float:
    """Measure the longest recovery of all steps of table II, run ten times as fast."""
    ends = [start_s / 10 for start_s, _ in PROFILE[1:]] + [100.0]
    times_s: list[float] = []
    for (start_s, load), end_s in zip(PROFILE, ends, strict=True):
        times_s += [start_s / 10 + at for at in poisson_s(load, end_s - start_s / 10, context.seed)]
    async with channel(node) as name:
        outbox = context.workdir / f"{uuid4().hex}.db"
        async with Publisher(url, channel=name, outbox=outbox) as publisher:
            timed = await offer(publisher, times_s)
    worst_s = 0.0
    for (start_s, _), end_s in list(zip(PROFILE, ends, strict=True))[1:]:
        step_s = start_s / 10
        settled_s = statistics.median(
            [one.latency_s for one in timed if (step_s + end_s) / 2 <= one.called_s < end_s]
        )
        inside = [one for one in timed if one.called_s < min(end_s, step_s + 5.0)]
        worst_s = max(worst_s, _recovery_s(inside, step_s, settled_s))
    return worst_s


def _recovery_s(timed: list[Timed], from_s: float, settled_s: float) -> float:
    """Find the time after `from_s` at which the median of eight messages in a row is within 10 % of settled."""
    after = [one for one in timed if one.called_s >= from_s]
    if not after:  # the backlog lasted longer than the load
        return math.inf
    for at in range(max(1, len(after) - _BIN)):
        if statistics.median([one.latency_s for one in after[at : at + _BIN]]) <= 1.1 * settled_s:
            return after[at].called_s - from_s if at else 0.0
    return after[-1].called_s - from_s


def _urgent(context: BenchContext, node: RabbitMqNode) -> Iterator[Row]:
    for round_trip_s in (0.0,) if context.quick else (0.0, 0.013):
        with delayed_url(node, round_trip_s) as (url, _):
            pairs = [
                asyncio.run(_urgent_p99_s(context, node, url, context.seed + turn))
                for turn in range(3 if context.quick else 5)
            ]
        yield context.row(
            "urgent p99 " + (f"{1000 * round_trip_s:g} ms" if round_trip_s else "direct"),
            1000 * statistics.median(loaded for _, loaded in pairs),
            "ms",
            peer=1000 * statistics.median(alone for alone, _ in pairs),
            peer_name="auto, urgent messages alone",
            goal=2.0,
        )


async def _urgent_p99_s(context: BenchContext, node: RabbitMqNode, url: str, seed: int) -> tuple[float, float]:
    """Measure the p99 of 100 urgent messages/s: (alone, beside ten times as many of the lowest class)."""
    p99_s: list[float] = []
    for others in (False, True):
        async with channel(node) as name:
            outbox = context.workdir / f"{uuid4().hex}.db"
            async with Publisher(url, channel=name, outbox=outbox) as publisher:
                urgent = offer(publisher, poisson_s(100.0, 3.5, seed), urgency=0)
                low = offer(
                    publisher, [1.0 + at for at in poisson_s(1000.0, 2.5, seed)] if others else [], urgency=9
                )
                timed, _ = await asyncio.gather(urgent, low)
        p99_s.append(float(np.quantile([one.latency_s for one in timed if one.called_s >= 1.0], 0.99)))
    return p99_s[0], p99_s[1]
