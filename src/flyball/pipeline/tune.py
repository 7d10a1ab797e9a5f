"""Identification of a lane's result queue on the running pipeline, open loop: play admissions, fit a model.

The pipeline works as always, but admission of every lane follows a bounded signal instead of its controller. What
is fitted is the free space as it would be if nothing were taken out, because how fast the combiner empties the
queue is a disturbance and not part of the plant: a naive fit takes it for the plant's own doing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flyball.control.design.design import ImpossibleWish, design
from flyball.control.gains import Gains
from flyball.control.identification.identify import Fit, identify
from flyball.control.identification.signals import Limits, prbs, staircase
from flyball.control.verification.verify import Certificate, verify
from flyball.errors import FlyballError, InvalidValue
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.policy import flow_controller
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.telemetry import read_flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEAST_ROWS = 12
_LOOK_S = 0.2


class Untunable(FlyballError, RuntimeError):
    """The experiment told too little; the message says why."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Of one lane: bytes of results admitted, and the free space at its end had nothing been taken out."""

    admitted_bytes: float
    free_bytes: float


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    gains: Gains | None
    certificate: Certificate | None
    reason: str

    @property
    def accepted(self) -> bool:
        return self.certificate is not None and self.certificate.accepted


@dataclass(frozen=True, slots=True)
class FlowTuning:
    intervals: tuple[Interval, ...]
    fit: Fit
    candidates: tuple[Candidate, ...]


def signal(kind: Literal["staircase", "prbs"], samples: int, hold: int, most_bytes: float) -> tuple[float, ...]:
    """Bytes to admit in one interval after the other, from a quarter of the most to the most.

    >>> signal("staircase", 4, 1, 4000.0)
    (1000.0, 2000.0, 3000.0, 4000.0)
    """
    low = most_bytes / 4
    limits = Limits(low, most_bytes, hold=hold)
    if kind == "prbs":
        middle = (low + most_bytes) / 2
        return tuple(float(value) for value in prbs(samples, middle, 0.8 * (most_bytes - middle), limits, seed=1))
    steps = max(4, samples // hold)
    levels = [low + (most_bytes - low) * step / (steps - 1) for step in range(steps)]
    return tuple(float(value) for value in staircase(levels, limits))


def record(
    url: str,
    config: PipelineConfig,
    folder: Path,
    played: Sequence[float],
    told: Callable[[Interval], None] = lambda _: None,
    spark: SparkSession | None = None,
    wait_s: float = 60.0,
) -> tuple[Interval, ...]:
    """Run the pipeline with admission as played; over after `wait_s` and three times its length at the latest,
    whatever the input does."""
    receipts = folder / "loops.db"
    before = len(_intervals(receipts, config.lanes.queue_bytes))
    options = {"flow": json.dumps({"played": list(played)})}
    pipeline = InlinePipeline(url, config, folder, spark=spark, source_options=options)
    pipeline.start()
    seen: list[Interval] = []
    try:
        deadline_s = time.monotonic() + 3 * len(played) * config.lanes.interval_s + wait_s
        while len(seen) < len(played) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            pipeline.check()
            now = _intervals(receipts, config.lanes.queue_bytes)[before:]
            for interval in now[len(seen) :]:
                told(interval)
            seen = now
    finally:
        pipeline.stop()
    return tuple(seen)


def _intervals(receipts: Path, queue_bytes: int) -> list[Interval]:
    return [Interval(admitted, queue_bytes - appended) for *_, admitted, appended in read_flow(receipts, lane=0)]


def tune(
    url: str,
    config: PipelineConfig,
    folder: Path,
    *,
    kind: Literal["staircase", "prbs"] = "prbs",
    samples: int = 30,
    hold: int = 2,
    settling: float = 6.0,
    overshoot: float = 0.05,
    told: Callable[[Interval], None] = lambda _: None,
    spark: SparkSession | None = None,
    wait_s: float = 60.0,
) -> FlowTuning:
    """Experiment, model, controllers."""
    if not _LEAST_ROWS <= samples <= 3600:
        raise InvalidValue(f"an experiment takes from {_LEAST_ROWS} to 3600 samples, got {samples}")
    played = signal(kind, samples, hold, config.lanes.queue_bytes / 16)
    seen = record(url, config, folder, played, told, spark, wait_s)
    moved = [interval for interval in seen if interval.admitted_bytes > 0]
    if len(moved) < _LEAST_ROWS:
        raise Untunable(
            f"events came in only {len(moved)} of {len(played)} intervals, {_LEAST_ROWS} are needed: "
            "fill the input log, or let the experiment take longer"
        )
    fit = identify(
        [interval.admitted_bytes for interval in seen[1:]],
        [interval.free_bytes for interval in seen[1:]],
        align="same",
        whole_range=True,
        max_delay=3,
    )
    return FlowTuning(seen, fit, candidates(fit, settling, overshoot))


def candidates(fit: Fit, settling: float, overshoot: float) -> tuple[Candidate, ...]:
    """A PI for the queue that was found, and the one that comes with the pipeline; each with its certificate."""
    covariance = fit.covariance[:2, :2] if fit.covariance.shape[0] >= 2 else None
    found = []
    try:
        made = design(fit.model, "pi", settling=settling, overshoot=overshoot).gains
        assert isinstance(made, Gains)
        verdict = verify(fit.model, made, covariance=covariance)
        found.append(Candidate("pi", made, verdict, verdict.reason))
    except ImpossibleWish as refused:
        found.append(Candidate("pi", None, getattr(refused, "certificate", None), str(refused)))
    usual = Gains(flow_controller().kp, flow_controller().ki)
    verdict = verify(fit.model, usual, covariance=covariance)
    found.append(Candidate("default", usual, verdict, verdict.reason))
    return tuple(found)
