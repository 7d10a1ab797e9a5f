"""CPU load on the core of one of two lanes that are Spark applications of their own, each on a core.

The input is 84 % of what the lanes finish *under* the CPU load, measured first on a backlog. Delay: the age of
an event when its result is in the results log, in order. Besides filter and lookup tier 1 hashes each event,
some 40 µs of a core, so that the lanes are the bottleneck, and not the publisher, the watcher, the splitter or
the combiner, which run where the kernel puts them.

    cpu load p99                        p99 under CPU load with control, beside the undisturbed p99
    cpu load p99 beyond the watermark   the same without the time that results wait for late events, by default 5 s
    disturbed lane, round robin         p99 in the second half of the CPU load with control, beside equal shares
    round robin growth                  by how many seconds a second the delay grows with equal shares
    disturbed lane, Spark's pull        the same p99, beside one query of many small partitions, which tasks pull

Round robin runs on the same lanes, after control.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flyball.demo.cpu_load import cpu_load
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.pipeline import load
from flyball.lab.rigs.pipeline.delay import DelayRig, Delays
from flyball.pipeline.config.pipeline import PipelineConfig

LOAD = 0.84
DISTURBED = 1
_PULLED_PARTITIONS = 16
_LONGEST_LOAD_S = 300.0
_LOADED_CORES = [DISTURBED, DISTURBED]
"""Two processes, which leave the lane a third of its core. All other processes then run on the other core: with a
single load process both lanes would be about equally slow, and equal shares would do."""
_LANES: dict[str, Any] = {"count": 2, "cores": [[0], [DISTURBED]]}


@dataclass(frozen=True, slots=True)
class Spans:
    """How long to warm the lanes up and how long each phase lasts, before and under the CPU load."""

    batches: int
    backlog: int
    capacity_s: float
    settle_s: float
    quiet_s: float
    load_s: float


_QUICK = Spans(100, 800_000, 10.0, 5.0, 8.0, 20.0)
_FULL = Spans(150, 1_600_000, 25.0, 10.0, 30.0, 60.0)
_LARGE_BATCHES_S = 6.0
"""warm-up with large batches"""
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
        context.note(f"  under CPU load the lanes finish {capacity:,.0f} events/s; input {rate:,.0f}")
        ours = _disturbed(rig, rate, spans)
        context.note(f"  control: {ours}")
        loaded_s, quiet_s, waits_s = ours.loaded.p99_s, ours.quiet.p99_s, rig.config.watermark_s
        yield context.row("cpu load p99", loaded_s, "s", peer=quiet_s, peer_name="undisturbed", goal=1.6)
        yield context.row(
            "cpu load p99 beyond the watermark",
            loaded_s - waits_s,
            "s",
            peer=quiet_s - waits_s,
            peer_name="undisturbed",
        )
        rig.pipeline.set_balance(False)
        equal = _disturbed(rig, rate, replace(spans, quiet_s=spans.settle_s))
        context.note(f"  round robin: {equal}")
    yield _beside(context, ours, "round robin", equal)
    yield context.row("round robin growth", equal.loaded.growth, "s/s")
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
    """Delays before the CPU load, under it, and in its second half."""

    quiet: Delays
    loaded: Delays
    late: Delays

    def __str__(self) -> str:
        return f"undisturbed {self.quiet}; under CPU load {self.loaded}; in its second half {self.late}"


def _beside(context: BenchContext, ours: Disturbed, name: str, other: Disturbed) -> Row:
    return context.row(f"disturbed lane, {name}", ours.late.p99_s, "s", peer=other.late.p99_s, peer_name=name)


def _rig(folder: Path, hosts: Path, seed: int, **config: Any) -> DelayRig:
    return DelayRig(folder, load.config(hosts, rules=False, heavy=True, watermark_s=_WATERMARK_S, **config), seed)


def _capacity(rig: DelayRig, spans: Spans, *, runs_lanes: bool = True) -> float:
    """Measure the events a second that the lanes together finish under CPU load while a backlog waits.

    Publishing costs about as much as it will in the measured phases: half of what is finished without the load.
    """
    rig.publish(spans.backlog)
    rig.rate = rig.lanes_per_s(range(_LANES["count"]), _LARGE_BATCHES_S) / 2
    with cpu_load(_LONGEST_LOAD_S, _LOADED_CORES, own_session=True):
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
    began_s = time.time()
    with cpu_load(_LONGEST_LOAD_S, _LOADED_CORES, own_session=True):
        time.sleep(spans.load_s)
        ended_s = time.time()
    rig.pipeline.check()
    half_s = (began_s + ended_s) / 2
    delays = Disturbed(rig.delays(quiet_s, began_s), rig.delays(began_s, ended_s), rig.delays(half_s, ended_s))
    rig.rate = 0.0
    return delays
