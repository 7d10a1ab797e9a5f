"""Events a second, beside plain Structured Streaming jobs that parse with `from_json`; what control costs.

All in one warm Spark session; both are measured alternately, after a first round that only warms up. Of each run
the first quarter is left out, in which batches grow to their size.

The plain jobs read the same events as lines of text files, a folder that Spark reads faster than anything else.
`tier 1` discards results. `end to end` writes them: ours in event-time order to a log, with alerts, through
result queues and combiner; the plain job unordered to Parquet, with a second query that looks for the same alerts.
`control overhead` is the time that sensors and controllers take, beside a source with fixed weights and limit.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from flyball.lab.bench import BenchContext, Row
from flyball.lab.interleave import measure_alternately
from flyball.lab.rigs.pipeline import load
from flyball.pipeline.audit import audit
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.run.session import spark_session
from flyball.pipeline.tier1 import steps as tier1

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WARM_UP = 0.25
_LINES_A_FILE = 25_000
_FILES_A_BATCH = 8


class InexactRun(RuntimeError):
    """The run lost or repeated something, so its rate does not count."""


def cases(context: BenchContext) -> Iterator[Row]:
    events = 1_000_000 if context.quick else 2_000_000
    turns = 1 if context.quick else 4
    rig = _Rig(context.workdir / "throughput", events, context.seed)
    try:
        ours, plain = measure_alternately(turns, rig.tier1, rig.plain_tier1)
        yield context.row("tier 1", ours, "events/s", goal=250_000, better="higher")
        yield context.row("tier 1 beside from_json", ours, "events/s", peer=plain, peer_name="Spark from_json")
        ours, plain = measure_alternately(turns, rig.end_to_end, rig.plain_end_to_end)
        yield context.row("end to end", ours, "events/s", goal=80_000, better="higher")
        yield context.row("end to end beside from_json", ours, "events/s", peer=plain, peer_name="Spark from_json")
        if context.quick:  # a single run gives shares of time, not rates: Spark gets faster run by run
            rig.fixed()
            yield rig.overhead(context)
            return
        rig.planning.clear()
        ours, fixed = measure_alternately(turns, rig.end_to_end, rig.fixed)
        yield rig.overhead(context)
        yield context.row(
            "control throughput", ours, "events/s", peer=fixed, peer_name="fixed weights, static limit"
        )
    finally:
        rig.spark.stop()


class _Rig:
    def __init__(self, folder: Path, events: int, seed: int) -> None:
        self.folder, self.events = folder, events
        self.hosts, self.lines = folder / "hosts.csv", folder / "lines"
        self.lines.mkdir(parents=True)
        self.url = f"sqlite:///{folder / 'broker.db'}"
        self.spark: SparkSession = spark_session("benchmark", workdir=folder)
        self.runs = 0
        self.planning: dict[bool, list[float]] = defaultdict(list)
        """share of the time spent on planning batches, with and without control"""
        load.write_hosts(self.hosts)
        bodies = list(load.bodies(events, seed))
        load.fill(self.url, bodies)
        for first in range(0, events, _LINES_A_FILE):
            text = b"\n".join(bodies[first : first + _LINES_A_FILE])
            (self.lines / f"{first:09}.json").write_bytes(text)
        self.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")

    def tier1(self) -> float:
        config = load.config(self.hosts)
        reader = self.spark.readStream.format("flyball").option("url", self.url).option("log", load.INPUT)
        stream = reader.options(columns=load.COLUMNS, event_time="event_time", lanes="2").load()
        return self._discard(
            stream.transform(tier1.function(config.tier1, config.source_columns, config.event_time))
        )

    def plain_tier1(self) -> float:
        return self._discard(self._join_hosts(self._parse()))

    def fixed(self) -> float:
        """Run without control: equal shares, and a static limit on a batch."""
        return self.end_to_end(control=False)

    def end_to_end(self, *, control: bool = True) -> float:
        folder = self._folder()
        config = load.config(self.hosts, name=folder.name, lanes={"control": control})
        pipeline = InlinePipeline(self.url, config, folder, spark=self.spark)
        pipeline.start()
        try:
            while pipeline.totals.events_in < _WARM_UP * self.events:
                pipeline.check()
                time.sleep(0.01)
            began_s, warm = time.monotonic(), pipeline.totals.events_in
            pipeline.drain()
            seconds = time.monotonic() - began_s
            self.planning[control].append(_planning(pipeline.progress("tier1")))
        finally:
            pipeline.stop()
        counts = audit(self.url, config, pipeline.totals)
        if counts.lost or counts.duplicated or counts.disordered or counts.waiting or not counts.alerts:
            raise InexactRun(f"the run was not exact: {counts}")
        return (self.events - warm) / seconds

    def overhead(self, context: BenchContext) -> Row:
        """Share of the time spent on planning batches, with control less without."""
        share = median(self.planning[True]) - median(self.planning[False])
        return context.row("control overhead", 100 * share, "% of the time", goal=2.0)

    def plain_end_to_end(self) -> float:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        parsed = self._parse()
        timed = parsed.where(load.FILTER).where("ip LIKE '92.126.11.%'")
        timed = timed.withColumn("time", F.timestamp_seconds("event_time")).withWatermark("time", "1 second")
        alerts = timed.groupBy(F.window("time", "10 seconds")).agg(F.max("load").alias("value"))
        folder = self._folder()
        queries = [
            self._start(self._join_hosts(parsed), "parquet", folder / "results", close_windows=False),
            self._start(alerts.where("value > 0.9985"), "json", folder / "alerts", close_windows=True),
        ]
        for query in queries:
            query.processAllAvailable()
        # Both work at the same time; a job is done when both are.
        rate = _rate([report for query in queries for report in query.recentProgress], len(queries))
        for query in queries:
            query.stop()
        return rate

    def _parse(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        lines = self.spark.readStream.option("maxFilesPerTrigger", _FILES_A_BATCH).text(str(self.lines))
        return lines.select(F.from_json("value", load.COLUMNS).alias("event")).select("event.*")

    def _join_hosts(self, parsed: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        table = self.spark.read.csv(str(self.hosts), header=True).withColumnRenamed("address", "ip")
        return parsed.where(load.FILTER).join(F.broadcast(table), "ip", "left")

    def _discard(self, stream: DataFrame) -> float:
        query = self._start(stream, "noop", None, close_windows=False)
        query.processAllAvailable()
        rate = _rate(query.recentProgress)
        query.stop()
        return rate

    def _start(self, stream: DataFrame, sink: str, path: Path | None, *, close_windows: bool) -> StreamingQuery:
        self.spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(close_windows).lower())
        writer = stream.writeStream.format(sink).option("checkpointLocation", str(self._folder()))
        return writer.start() if path is None else writer.start(str(path))

    def _folder(self) -> Path:
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        folder.mkdir()
        return folder


def _rate(reports: list[Any], queries: int = 1) -> float:
    """Events a second after the batches have grown, by the clock from the first such batch to the end of the last.

    Of several queries each reads every event.
    """
    batches = sorted(
        ((_began_s(report), report) for report in reports if report["numInputRows"]), key=lambda b: b[0]
    )
    total, seen = sum(report["numInputRows"] for _, report in batches), 0
    counted = []
    for began_s, report in batches:
        if seen >= _WARM_UP * total:
            counted.append((began_s, report))
        seen += report["numInputRows"]
    ended_s: float = max(began_s + report["durationMs"]["triggerExecution"] / 1e3 for began_s, report in counted)
    events: int = sum(report["numInputRows"] for _, report in counted)
    return events / queries / (ended_s - counted[0][0])


def _planning(reports: list[Any]) -> float:
    durations = [report["durationMs"] for report in reports if report["numInputRows"]][
        1:
    ]  # the first one connects
    return float(sum(one["latestOffset"] for one in durations) / sum(one["triggerExecution"] for one in durations))


def _began_s(report: Any) -> float:
    return datetime.fromisoformat(report["timestamp"]).timestamp()
