"""Flow control live: one lane with a backlog, its result queue emptied at a set rate, and CPU load on its cores.

    flow held               largest deviation of the free space from its reference, once settled, in %
    flow settled            intervals until it stays within ± 3 %, after a change of the drain
    flow with a hog         the same deviation under CPU load on every core
    flow after the hog      intervals until it stays within ± 3 % after the CPU load has ended
    flow dropped            results that are missing from the queue
    flow queue at most      the largest fill of the queue, beside the same lane without control

The free space is what the loop itself measured each interval (2 s), from the telemetry. The input exceeds what may
be admitted from the first second to the last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.demo.cpu_load import cpu_load
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.pipeline import load
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import QueueLevels, cursor_body, cursor_name, queue_name
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.run.queries import Queries
from flyball.pipeline.run.session import spark_session
from flyball.pipeline.telemetry import read_flow
from flyball.pipeline.tier1.result_queues import Lanes
from flyball.pipeline.tier1.stage import TierOne

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MB = 1e6
FAST, SLOW = 1.2 * MB, 0.7 * MB
BAND = 0.03
_INTERVAL_S = 0.05
_UNCONTROLLED_S = 10.0


def cases(context: BenchContext) -> Iterator[Row]:
    folder = context.workdir / "flow"
    folder.mkdir(parents=True)
    spark = spark_session("benchmark", workdir=folder)
    try:
        yield from _cases(context, spark, folder)
    finally:
        spark.stop()


def _cases(context: BenchContext, spark: SparkSession, folder: Path) -> Iterator[Row]:
    hosts, url = folder / "hosts.csv", f"sqlite:///{folder / 'broker.db'}"
    load.write_hosts(hosts)
    load.fill(url, load.bodies(1_300_000 if context.quick else 4_000_000, context.seed), ends=False)
    lane = _Lane(spark, url, load.config(hosts, rules=False, lanes={"count": 1}), folder / "controlled")
    phase_s = 14.0 if context.quick else 40.0
    with lane:
        lane.drain = FAST
        lane.wait_until_full_enough()
        time.sleep(phase_s / 2)
        changes = []
        for drain in (SLOW,) if context.quick else (SLOW, FAST, SLOW):
            lane.drain = drain
            changes.append((time.time(), time.time() + phase_s))
            time.sleep(phase_s)
        load_began_s = time.time()
        with cpu_load(phase_s + 30.0, [None, None]):
            time.sleep(phase_s)
        load_ended_s = time.time()
        time.sleep(phase_s)
        lane.check()
    samples = lane.samples()
    deviation, settled = zip(*(_judge(samples, *change) for change in changes), strict=True)
    yield context.row("flow held", 100 * max(deviation), "% of the reference", goal=100 * BAND)
    yield context.row("flow settled", max(settled), "intervals", goal=8)
    under_load, _ = _judge(samples, load_began_s, load_ended_s)
    _, after_load = _judge(samples, load_ended_s, load_ended_s + phase_s)
    yield context.row("flow with a hog", 100 * under_load, "% of the reference", goal=100 * BAND)
    yield context.row("flow after the hog", after_load, "intervals", goal=8)
    yield context.row("flow dropped", lane.missing(), "results", goal=0)
    without = load.config(hosts, name="loose", rules=False, lanes={"count": 1, "control": False})
    uncontrolled = _Lane(spark, url, without, folder / "loose")
    with uncontrolled:
        uncontrolled.drain = FAST
        time.sleep(_UNCONTROLLED_S)
        uncontrolled.check()
    yield context.row(
        "flow queue at most",
        lane.most_queued / MB,
        "MB of results, 64 fit",
        peer=uncontrolled.most_queued / MB,
        peer_name=f"{_UNCONTROLLED_S:.0f} s without control",
    )


def _judge(samples: list[tuple[float, float, float]], since_s: float, until_s: float) -> tuple[float, int]:
    """Return (largest deviation once settled, intervals until then) within a span of time."""
    errors = [abs(free / reference - 1.0) for at_s, reference, free in samples if since_s <= at_s < until_s]
    outside = [number for number, error in enumerate(errors, start=1) if error > BAND]
    settled = max(outside, default=0)
    return max(errors[settled:] or errors[-1:]), settled


class _Lane:
    """Tier 1 as one lane of this application, whose result queue is emptied at a rate instead of by a combiner."""

    def __init__(self, spark: SparkSession, url: str, config: PipelineConfig, folder: Path) -> None:
        folder.mkdir()
        self._url, self._config, self._folder = url, config, folder
        self._sinks = LogSinks(url)
        self._queries = Queries(spark, url, config, folder)
        self.drain = 0.0
        """bytes a second that are removed from the queue"""
        self.most_queued = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._drain_queue, name="drain", daemon=True)

    def __enter__(self) -> None:
        config = self._config
        self._sinks.open()
        self._sinks.declare(config.input)
        self._sinks.add(cursor_name(config.results), None)
        lanes = Lanes(self._sinks, self._url, config.results, config.lanes.queue_bytes)
        lanes.open(0)
        tier = TierOne(self._url, config, self._sinks, lanes, "tier1", "")
        tier.open()
        tier.start(self._queries)
        self._thread.start()

    def __exit__(self, *reason: object) -> None:
        self._queries.stop()
        self._stop.set()
        self._thread.join()
        self._sinks.close()

    def check(self) -> None:
        self._queries.check()

    def _drain_queue(self) -> None:
        levels, drained_bytes = QueueLevels(self._url, self._config.results), 0.0
        last_s = time.monotonic()
        while not self._stop.wait(_INTERVAL_S):
            now_s = time.monotonic()
            (level,) = levels.read([0])
            drained_bytes = min(float(level.appended_bytes), drained_bytes + self.drain * (now_s - last_s))
            last_s = now_s
            self.most_queued = max(self.most_queued, level.appended_bytes - int(drained_bytes))
            self._sinks.append_unsequenced(cursor_name(self._config.results), cursor_body({0: int(drained_bytes)}))
        levels.close()

    def wait_until_full_enough(self) -> None:
        """Wait until the free space, which starts above the reference, comes down to it."""
        reference = self._config.lanes.free_bytes
        while not any(free < (1 + BAND) * reference for _, _, free in self.samples()):
            self.check()
            time.sleep(0.5)

    def samples(self) -> list[tuple[float, float, float]]:
        """Return (time, reference, free space) of each interval so far."""
        return [(at_s, goal, free) for at_s, goal, free, *_ in read_flow(self._folder / "loops.db", lane=0)]

    def missing(self) -> int:
        """Count the results that the lane counted and that are not in its queue exactly once."""
        offsets: list[Any] = []
        counted = 0
        with open_log_reader(self._url, queue_name(self._config.results, 0)) as reader:
            for chunk in reader.read_bodies(0, *reader.bounds(0)):
                for body in chunk.bodies:
                    header, rows = entry.decode(body)
                    counted = header["totals"]["results"]
                    offsets.append(rows["_offset"].to_numpy())
        positions = np.concatenate(offsets)
        return abs(counted - np.unique(positions).size) + (positions.size - np.unique(positions).size)
