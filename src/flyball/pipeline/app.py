"""The pipeline as a whole, on one Spark session:

    input log → tier 1 (lanes) → result queues → combiner → results log, in order → tier 2 (rules) → alert log

Tier 1 and each rule are streaming queries with checkpoints of their own; the combiner keeps its state in the
results log. Each of them takes a repeated batch only once, so a pipeline that was killed anywhere continues where
it was and ends with the same results and alerts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.url import BrokerUrl
from flyball.errors import FlyballError, InvalidValue
from flyball.pipeline import tier1
from flyball.pipeline.checkpoint import last_offset, offset_of
from flyball.pipeline.columns import EVENT, MALFORMED
from flyball.pipeline.combiner import Combiner, CombinerSettings
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.lane import Lanes
from flyball.pipeline.ledger import Totals
from flyball.pipeline.monitor import Monitor, monitor_name, sampled_columns
from flyball.pipeline.queues import lanes_name
from flyball.pipeline.session import spark_session
from flyball.pipeline.shares import END, ShareEnd
from flyball.pipeline.sink import LogSinks
from flyball.pipeline.tier_two import AlertHandler, TierTwo

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TIER1 = "tier1"
_LOOK_S = 0.05


class PipelineFailed(FlyballError, RuntimeError):
    """A query of the pipeline stopped by itself; what was committed before is kept."""


class Pipeline:
    """A running pipeline. `folder` keeps checkpoints: the same folder and broker continue the same run.

    It starts a Spark session of its own and ends it, unless it is given one.
    """

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        folder: Path,
        on_alert: AlertHandler = lambda _alert: None,
        spark: SparkSession | None = None,
    ) -> None:
        refuse_embedded_on_several_hosts(url, config.master)
        self._url = url
        self._config = config
        self._folder = folder
        self._sinks = LogSinks(url)
        self._lanes = Lanes(self._sinks, url, config.results, config.lanes.queue_bytes)
        self._combiner = Combiner(url, self._sinks, _combining(config), folder / "held", range(config.lanes.count))
        self._monitor = Monitor(
            self._sinks,
            url,
            monitor_name(config.results),
            config.monitors,
            config.source_columns,
            config.event_time,
        )
        self._rules = TierTwo(url, config, self._sinks, on_alert)
        self._queries: dict[str, StreamingQuery] = {}
        self._spark, self._own_spark = spark, spark is None

    def start(self) -> None:
        """Start Spark and the queries, one after the other."""
        config = self._config
        self._sinks.open()
        self._sinks.declare(config.input)
        self._sinks.add(config.dead_letter, producer=_TIER1)
        self._sinks.add(lanes_name(config.results), None)
        for lane in range(config.lanes.count):
            self._lanes.open(lane)
        self._monitor.open()
        self._rules.open()
        self._combiner.start()
        if self._spark is None:
            self._spark = spark_session("flyball", config.master, workdir=self._folder)
        self._query(_TIER1, self._stream(self._tier1_options()), self._tier1_batch, close_windows=False)
        for rule in config.rules:
            stream = self._rules.findings(self._stream(self._results_options()), rule)
            self._query(f"rule-{rule.name}", stream, self._rules.handler(rule), close_windows=True)

    @property
    def totals(self) -> Totals:
        return self._combiner.totals

    def set_lanes(self, count: int) -> None:
        """Run so many lanes from one of the next batches on; results of lanes that leave are not lost."""
        if not 1 <= count <= 64:
            raise InvalidValue(f"a pipeline has 1 to 64 lanes, not {count}")
        for lane in range(count):
            self._lanes.open(lane)
        self._sinks.tell(lanes_name(self._config.results), json.dumps({"lanes": count}).encode())

    def check(self) -> None:
        """Raise if a part has failed."""
        self._combiner.check()
        for name, query in self._queries.items():
            failure = query.exception()
            if failure is not None:
                raise PipelineFailed(f"the query {name} failed: {_first_line(str(failure))}")

    def progress(self, query: str) -> list[Any]:
        """Spark's reports on the last batches of a query: "tier1", or "rule-" and the rule's name."""
        return list(self._queries[query].recentProgress)

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""
        with open_log_reader(self._url, self._config.input) as reader:
            goal = [reader.bounds(partition)[1] for partition in range(reader.partitions())]
        # Flow control may keep input waiting, which looks to Spark as if there were none.
        while any(at < end for at, end in zip(self._planned(len(goal)), goal, strict=True)):
            self.check()
            time.sleep(_LOOK_S)
        self._finish(_TIER1)
        self._combiner.drain()
        for name in self._queries:
            self._finish(name)

    def stop(self) -> None:
        for query in self._queries.values():
            query.stop()
        self._combiner.stop()
        if self._spark is not None and self._own_spark:
            self._spark.stop()
        self._sinks.close()

    def _planned(self, partitions: int) -> list[int]:
        """How far tier 1's batches go, the one under way included."""
        offset = last_offset(self._checkpoint(_TIER1))
        return [-1] * partitions if offset is None else list(offset["next"])

    def _finish(self, name: str) -> None:
        try:
            self._queries[name].processAllAvailable()
        except Exception:  # Spark raises its own kinds; check() says it in one sentence
            self.check()
            raise

    def _tier1_options(self) -> Mapping[str, object]:
        config, lanes = self._config, self._config.lanes
        sample = sampled_columns(config.monitors, config.source_columns, config.event_time)
        return {
            "values": monitor_name(config.results) if config.monitors else "",
            "sample": ",".join(sample.names) if config.monitors else "",
            "log": config.input,
            "columns": config.source_columns.text,
            "max_rows": config.max_rows,
            "interval_s": lanes.interval_s,
            "lanes": lanes.count,
            "result_queue": config.results,
            "queue_bytes": lanes.queue_bytes,
            "free_bytes": lanes.free_bytes,
            "balance": str(lanes.balance).lower(),
        }

    def _results_options(self) -> Mapping[str, object]:
        return {"log": self._config.results, "columns": self._config.result_columns.text, "format": "rows"}

    def _stream(self, options: Mapping[str, object]) -> DataFrame:
        assert self._spark is not None
        everywhere = {"url": self._url, "event_time": self._config.event_time}
        reader = self._spark.readStream.format("flyball")
        return reader.options(**everywhere, **{name: str(value) for name, value in options.items()}).load()

    def _query(
        self, name: str, stream: DataFrame, handle: Callable[[DataFrame, int], None], *, close_windows: bool
    ) -> None:
        assert self._spark is not None
        # An empty batch after the last one lets the watermark close windows; without windows it is only work.
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(close_windows).lower())
        writer = stream.writeStream.queryName(name).foreachBatch(handle).outputMode("append")
        self._queries[name] = writer.option("checkpointLocation", str(self._checkpoint(name))).start()

    def _checkpoint(self, query: str) -> Path:
        return self._folder / "checkpoints" / query

    def _tier1_batch(self, rows: DataFrame, batch: int) -> None:
        thresholds = self._monitor.in_force(offset_of(self._checkpoint(_TIER1), batch))
        steps = tier1.function(self._config.tier1, self._config.source_columns.knowing(thresholds))
        table = rows.transform(steps).toArrow()
        results, malformed, ended = (_only(table, kind) for kind in (EVENT, MALFORMED, END))
        ends = [ShareEnd.from_json(body) for body in ended["_body"].to_pylist()]
        # Dead letters first: an event is counted in its lane's totals only when it is where they say.
        self._sinks.append(self._config.dead_letter, _TIER1, batch, _dead_letters(malformed))
        self._lanes.write(batch, results.drop_columns(["_kind", "_error", "_body"]), malformed, ends)
        self._monitor.take(rows.sparkSession, batch, ends)


def refuse_embedded_on_several_hosts(url: str, master: str) -> None:
    """A SQLite file cannot be shared between hosts, so executors elsewhere could not read it.

    >>> refuse_embedded_on_several_hosts("sqlite:///x.db", "spark://10.0.0.7:7077")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the embedded broker sqlite:///x.db is a file of this host, which executors of ...
    >>> refuse_embedded_on_several_hosts("sqlite:///x.db", "local[2]")
    """
    here = master.startswith(("local", "spark://127.0.0.1:", "spark://localhost:"))
    if BrokerUrl.parse(url).scheme == "sqlite" and not here:
        raise InvalidValue(
            f"the embedded broker {url} is a file of this host, which executors of {master} on other hosts cannot "
            "read: use kafka:// or rabbitmq-stream://"
        )


def _combining(config: PipelineConfig) -> CombinerSettings:
    return CombinerSettings(
        results=config.results,
        late=config.late,
        event_time=config.event_time,
        watermark_s=config.watermark_s,
        timeout_s=config.lanes.timeout_s,
        hold_bytes=config.lanes.hold_bytes,
        end_mark_s=config.longest_window_s,
    )


def _only(table: pa.Table, kind: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.equal(table["_kind"], kind))


def _dead_letters(malformed: pa.Table) -> list[bytes]:
    """What a person needs to mend a malformed event: where it was, what it was, what is wrong with it."""
    return [
        json.dumps(
            {
                "_partition": row["_partition"],
                "_offset": row["_offset"],
                "error": row["_error"],
                "body": row["_body"].decode(errors="backslashreplace"),
            }
        ).encode()
        for row in malformed.to_pylist()
    ]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
