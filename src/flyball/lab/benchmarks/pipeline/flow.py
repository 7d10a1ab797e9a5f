"""Flow control live: one lane with a backlog, its result queue emptied at a set rate, and a hog on its cores.

    flow held               largest deviation of the free space from its reference, once settled, in %
    flow settled            intervals until it stays within ± 3 %, after a change of the drain
    flow with a hog         the same deviation while a hog burns every core
    flow after the hog      intervals until it stays within ± 3 % when the hog has gone
    flow dropped            results that were not found in the queue
    flow queue at most      the most that stood in the queue, beside the same lane without control

The free space is what the loop itself saw each interval (2 s), from the telemetry. The input exceeds what may be
admitted from the first second to the last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.demo.cpu_load import hogs
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
_LOOK_S = 0.05
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
        hog_at_s = time.time()
        with hogs(phase_s + 30.0, [None, None]):
            time.sleep(phase_s)
        hog_gone_s = time.time()
        time.sleep(phase_s)
        lane.check()
    seen = lane.seen()
    held, settled = zip(*(_judged(seen, *change) for change in changes), strict=True)
    yield context.row("flow held", 100 * max(held), "% of the reference", goal=100 * BAND)
    yield context.row("flow settled", max(settled), "intervals", goal=8)
    with_hog, _ = _judged(seen, hog_at_s, hog_gone_s)
    _, after_hog = _judged(seen, hog_gone_s, hog_gone_s + phase_s)
    yield context.row("flow with a hog", 100 * with_hog, "% of the reference", goal=100 * BAND)
    yield context.row("flow after the hog", after_hog, "intervals", goal=8)
    yield context.row("flow dropped", lane.missing(), "results", goal=0)
    without = load.config(hosts, name="loose", rules=False, lanes={"count": 1, "control": False})
    loose = _Lane(spark, url, without, folder / "loose")
    with loose:
        loose.drain = FAST
        time.sleep(_UNCONTROLLED_S)
        loose.check()
    yield context.row(
        "flow queue at most",
        lane.most_queued / MB,
        "MB of results, 64 fit",
        peer=loose.most_queued / MB,
        peer_name=f"{_UNCONTROLLED_S:.0f} s without control",
    )


def _judged(seen: list[tuple[float, float, float]], since_s: float, until_s: float) -> tuple[float, int]:
    """(largest deviation once settled, intervals until then) within a span of time."""
    errors = [abs(free / reference - 1.0) for at_s, reference, free in seen if since_s <= at_s < until_s]
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
        """bytes a second that are taken out of the queue"""
        self.most_queued = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take, name="drain", daemon=True)

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

    def _take(self) -> None:
        levels, taken, looked_s = QueueLevels(self._url, self._config.results), 0.0, time.monotonic()
        while not self._stop.wait(_LOOK_S):
            now_s = time.monotonic()
            (level,) = levels.read([0])
            taken = min(float(level.appended_bytes), taken + self.drain * (now_s - looked_s))
            looked_s = now_s
            self.most_queued = max(self.most_queued, level.appended_bytes - int(taken))
            self._sinks.tell(cursor_name(self._config.results), cursor_body({0: int(taken)}))
        levels.close()

    def wait_until_full_enough(self) -> None:
        """The queue starts empty, with more than the reference free."""
        reference = self._config.lanes.free_bytes
        while not any(free < (1 + BAND) * reference for _, _, free in self.seen()):
            self.check()
            time.sleep(0.5)

    def seen(self) -> list[tuple[float, float, float]]:
        """(time, reference, free space) of each interval so far."""
        return [(at_s, goal, free) for at_s, goal, free, *_ in read_flow(self._folder / "loops.db", lane=0)]

    def missing(self) -> int:
        """Results that the lane counted and that do not stand in its queue exactly once."""
        offsets: list[Any] = []
        counted = 0
        with open_log_reader(self._url, queue_name(self._config.results, 0)) as reader:
            for chunk in reader.read_bodies(0, *reader.bounds(0)):
                for body in chunk.bodies:
                    header, rows = entry.decode(body)
                    counted = header["totals"]["results"]
                    offsets.append(rows["_offset"].to_numpy())
        places = np.concatenate(offsets)
        return abs(counted - np.unique(places).size) + (places.size - np.unique(places).size)
