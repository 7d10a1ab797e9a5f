"""A hog on the core of one of two lanes that are Spark applications of their own, each on a core.

The load is 84 % of what the lanes finish *beside* the hog, measured first on a backlog. Delay: how old an event
is when its result stands in the results log, in order. Besides filter and lookup tier 1 hashes each event, some
40 µs of a core: so lanes are the bottleneck, and not who publishes and watches, splitter or combiner, which run
where the kernel puts them.

    hog p99                        p99 with the hog and control, beside the undisturbed p99
    hog p99 beyond the watermark   the same without the time that results wait for late events, by default 5 s
    disturbed lane, round robin    p99 of the hog's second half with control, beside equal shares
    round robin growth             by how many seconds a second the delay grows with equal shares
    disturbed lane, Spark's pull   the same p99, beside one query of many small partitions, which tasks pull

Round robin takes its turn on the same running lanes, after control.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyball.demo.cpu_load import hogs
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.pipeline import load
from flyball.lab.rigs.pipeline.delay import DelayRig, Delays
from flyball.pipeline.config.pipeline import PipelineConfig

LOAD = 0.84
DISTURBED = 1
_PULLED_PARTITIONS = 16
_LONGEST_HOG_S = 300.0
_HOG = [DISTURBED, DISTURBED]
"""two processes: the lane keeps a third of its core. Who is no lane then runs on the other core, so with one alone
both lanes would be about equally slow, and equal shares would do"""
_LANES: dict[str, Any] = {"count": 2, "cores": [[0], [DISTURBED]]}


@dataclass(frozen=True, slots=True)
class Spans:
    """How warm the lanes are and how much comes before the hog, and how long it stays."""

    batches: int
    backlog: int
    capacity_s: float
    settle_s: float
    quiet_s: float
    hog_s: float


_QUICK = Spans(100, 800_000, 10.0, 5.0, 8.0, 20.0)
_FULL = Spans(150, 1_600_000, 25.0, 10.0, 30.0, 60.0)
_LARGE_BATCHES_S = 6.0
"""until the lanes are used to large batches too"""
_NEARLY_ALL = 0.99
_WATERMARK_S = PipelineConfig.model_fields["watermark_s"].default


def cases(context: BenchContext) -> Iterator[Row]:
    folder = context.workdir / "disturbed"
    folder.mkdir(parents=True)
    hosts = folder / "hosts.csv"
    load.write_hosts(hosts)
    spans = _QUICK if context.quick else _FULL
    with _rig(folder / "control", hosts, context.seed, lanes=_LANES, runner="process") as rig:
        rig.warm_up(range(_LANES["count"]), spans.batches)
        context.note(f"  the lanes are warm: {spans.batches} small batches each")
        capacity = _capacity(rig, spans)
        rate = LOAD * capacity
        context.note(f"  beside the hog the lanes finish {capacity:,.0f} events/s; load {rate:,.0f}")
        ours = _disturbed(rig, rate, spans)
        context.note(f"  control: {ours}")
        hog_s, quiet_s, waits_s = ours.hog.p99_s, ours.quiet.p99_s, rig.config.watermark_s
        yield context.row("hog p99", hog_s, "s", peer=quiet_s, peer_name="undisturbed", goal=1.6)
        yield context.row(
            "hog p99 beyond the watermark", hog_s - waits_s, "s", peer=quiet_s - waits_s, peer_name="undisturbed"
        )
        rig.pipeline.set_balance(False)
        equal = _disturbed(rig, rate, replace(spans, quiet_s=spans.settle_s))
        context.note(f"  round robin: {equal}")
    yield _beside(context, ours, "round robin", equal)
    yield context.row("round robin growth", equal.hog.growth, "s/s")
    if context.quick:
        return
    pulled = {"count": _PULLED_PARTITIONS, "balance": False}
    with _rig(folder / "pull", hosts, context.seed, lanes=pulled, runner="inline") as rig:
        rig.warm_up([0], spans.batches)
        _capacity(rig, spans, runs_lanes=False)  # so that it is as warm
        pull = _disturbed(rig, rate, spans)
        context.note(f"  Spark's pull: {pull}")
    yield _beside(context, ours, "Spark's pull", pull)


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Delays before the hog, while it is there, and in its second half."""

    quiet: Delays
    hog: Delays
    late: Delays

    def __str__(self) -> str:
        return f"undisturbed {self.quiet}; with the hog {self.hog}; in its second half {self.late}"


def _beside(context: BenchContext, ours: Disturbed, name: str, other: Disturbed) -> Row:
    return context.row(f"disturbed lane, {name}", ours.late.p99_s, "s", peer=other.late.p99_s, peer_name=name)


def _rig(folder: Path, hosts: Path, seed: int, **config: Any) -> DelayRig:
    return DelayRig(folder, load.config(hosts, rules=False, heavy=True, watermark_s=_WATERMARK_S, **config), seed)


def _capacity(rig: DelayRig, spans: Spans, *, runs_lanes: bool = True) -> float:
    """Events a second that the lanes together finish beside the hog while more wait than can be. Publishing costs
    as much as it will then, or nearly: half of what is finished without a hog."""
    rig.publish(spans.backlog)
    rig.rate = rig.lanes_per_s(range(_LANES["count"]), _LARGE_BATCHES_S) / 2
    with hogs(_LONGEST_HOG_S, _HOG, apart=True):
        time.sleep(spans.settle_s)
        finished = rig.lanes_per_s(range(_LANES["count"]), spans.capacity_s) if runs_lanes else 0.0
    rig.rate = 0.0
    return finished


def _disturbed(rig: DelayRig, rate: float, spans: Spans) -> Disturbed:
    rig.wait_for(_NEARLY_ALL)
    rig.rate = rate
    time.sleep(spans.settle_s)
    quiet_s = time.time()
    time.sleep(spans.quiet_s)
    hog_s = time.time()
    with hogs(_LONGEST_HOG_S, _HOG, apart=True):
        time.sleep(spans.hog_s)
        gone_s = time.time()
    rig.pipeline.check()
    half_s = (hog_s + gone_s) / 2
    found = Disturbed(rig.delays(quiet_s, hog_s), rig.delays(hog_s, gone_s), rig.delays(half_s, gone_s))
    rig.rate = 0.0
    return found
