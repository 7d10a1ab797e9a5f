"""Identification of a lane's result queue on the running pipeline, open loop: play admissions, fit a model.

The pipeline works as always, but admission of every lane follows a bounded signal instead of its controller. What
is fitted is the free space as it would be if nothing were taken out, because how fast the combiner empties the
queue is a disturbance and not part of the plant: a naive fit takes it for the plant's own doing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flyball.control.gains import Gains
from flyball.control.identification.identify import Fit, identify
from flyball.control.tuning import (
    LEAST_SAMPLES,
    Candidate,
    SignalKind,
    Untunable,
    check_samples,
    designed,
    excitation,
    verified,
)
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.policy import flow_controller
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.telemetry import read_flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Interval:
    """One lane's interval: bytes of results admitted, and the free space at its end if nothing had been read."""

    admitted_bytes: float
    free_bytes: float


@dataclass(frozen=True, slots=True)
class FlowTuning:
    intervals: tuple[Interval, ...]
    fit: Fit
    candidates: tuple[Candidate, ...]


def record(
    url: str,
    config: PipelineConfig,
    folder: Path,
    played: Sequence[float],
    on_interval: Callable[[Interval], None] = lambda _: None,
    spark: SparkSession | None = None,
    wait_s: float = 60.0,
) -> tuple[Interval, ...]:
    """Run the pipeline with admission as played; over after `wait_s` and three times its length at the latest,
    whatever the input does."""
    records = folder / "loops.db"
    before = len(_intervals(records, config.lanes.queue_bytes))
    pipeline = InlinePipeline(url, config, folder, spark=spark, lane_options={"played": tuple(played)})
    pipeline.start()
    seen: list[Interval] = []
    try:
        deadline_s = time.monotonic() + 3 * len(played) * config.lanes.interval_s + wait_s
        while len(seen) < len(played) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            pipeline.check()
            now = _intervals(records, config.lanes.queue_bytes)[before:]
            for interval in now[len(seen) :]:
                on_interval(interval)
            seen = now
    finally:
        pipeline.stop()
    return tuple(seen)


def _intervals(records: Path, queue_bytes: int) -> list[Interval]:
    return [Interval(admitted, queue_bytes - appended) for *_, admitted, appended in read_flow(records, lane=0)]


def tune(
    url: str,
    config: PipelineConfig,
    folder: Path,
    *,
    kind: SignalKind = "prbs",
    samples: int = 30,
    hold: int = 2,
    settling: float = 6.0,
    overshoot: float = 0.05,
    on_interval: Callable[[Interval], None] = lambda _: None,
    spark: SparkSession | None = None,
    wait_s: float = 60.0,
) -> FlowTuning:
    """Experiment, model, controllers."""
    check_samples(samples)
    most_bytes = config.lanes.queue_bytes / 16
    played = excitation(kind, most_bytes / 4, most_bytes, samples=samples, hold=hold)
    seen = record(url, config, folder, played, on_interval, spark, wait_s)
    moved = [interval for interval in seen if interval.admitted_bytes > 0]
    if len(moved) < LEAST_SAMPLES:
        raise Untunable(
            f"events came in only {len(moved)} of {len(played)} intervals, {LEAST_SAMPLES} are needed: "
            "fill the input log, or let the experiment take longer"
        )
    fit = identify(
        [interval.admitted_bytes for interval in seen[1:]],
        [interval.free_bytes for interval in seen[1:]],
        align="same",
        whole_range=True,
        max_delay=3,
        method="least squares",
    )
    return FlowTuning(seen, fit, candidates(fit, settling, overshoot))


def candidates(fit: Fit, settling: float, overshoot: float) -> tuple[Candidate, ...]:
    """A PI for the identified queue, and the pipeline's default PI, each with its certificate."""
    covariance = fit.covariance[:2, :2] if fit.covariance.shape[0] >= 2 else None
    usual = Gains(flow_controller().kp, flow_controller().ki)
    return (
        designed("pi", "pi", fit.model, settling=settling, overshoot=overshoot, covariance=covariance),
        verified("default", usual, fit.model, covariance),
    )
