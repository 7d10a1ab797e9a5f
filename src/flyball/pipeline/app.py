"""The pipeline as a whole: input log → tier 1 → results log → tier 2 → alert log, on one Spark session.

Each arrow is a streaming query with its own checkpoint, and each sink takes a repeated batch only once, so a
pipeline that was killed anywhere continues where it was and ends with the same results and alerts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import FlyballError, require
from flyball.pipeline import rules, tier1
from flyball.pipeline.columns import EVENT, MALFORMED, MARK, Columns
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.ledger import Ledger, Totals
from flyball.pipeline.marks import mark
from flyball.pipeline.rules.base import RuleBase
from flyball.pipeline.rules.gate import GateState
from flyball.pipeline.session import spark_session
from flyball.pipeline.sink import LogSinks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LEDGER = "ledger"

AlertHandler = Callable[[dict[str, Any]], None]


class PipelineFailed(FlyballError, RuntimeError):
    """A query of the pipeline stopped by itself; what was committed before is kept."""


class Pipeline:
    """A running pipeline. `folder` keeps checkpoints: the same folder and broker continue the same run."""

    def __init__(
        self, url: str, config: PipelineConfig, folder: Path, on_alert: AlertHandler = lambda _alert: None
    ) -> None:
        self._url = url
        self._config = config
        self._folder = folder
        self._on_alert = on_alert
        self._sinks = LogSinks(url)
        self._ledger = Ledger()
        self._queries: list[StreamingQuery] = []
        self._spark: SparkSession | None = None

    def start(self) -> None:
        """Start Spark and the queries, one after the other."""
        config = self._config
        self._sinks.open()
        self._sinks.declare(config.input)
        for log in (config.results, config.dead_letter, LEDGER):
            self._sinks.add(log, producer="tier1")
        if config.rules:
            self._sinks.declare(config.alerts)
        for rule in config.rules:
            self._sinks.add(rule.to or config.alerts, producer=f"rule-{rule.name}")
            if rule.gated:
                self._sinks.add(_gate_log(rule), producer=f"rule-{rule.name}")
        self._ledger = Ledger([Totals.from_json(body) for body in self._last_bodies(LEDGER)])
        self._spark = spark_session("flyball", config.master, workdir=self._folder)
        self._query(
            "tier1", self._stream(config.input, config.source_columns), self._tier1_batch, close_windows=False
        )
        for rule in config.rules:
            stream = rules.alerts(
                self._stream(config.results, config.result_columns),
                rule,
                config.result_columns,
                config.event_time,
                config.watermark_s,
                config.longest_window_s,
            )
            self._query(f"rule-{rule.name}", stream, self._rule_batch(rule), close_windows=True)

    @property
    def totals(self) -> Totals:
        return self._ledger.now

    def check(self) -> None:
        """Raise if a query has failed."""
        for query in self._queries:
            failure = query.exception()
            if failure is not None:
                raise PipelineFailed(f"the query {query.name} failed: {_first_line(str(failure))}")

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""
        for query in self._queries:
            try:
                query.processAllAvailable()
            except Exception:  # Spark raises its own kinds; check() says it in one sentence
                self.check()
                raise

    def stop(self) -> None:
        for query in self._queries:
            query.stop()
        if self._spark is not None:
            self._spark.stop()
        self._sinks.close()

    def _stream(self, log: str, columns: Columns) -> DataFrame:
        assert self._spark is not None
        options = {
            "url": self._url,
            "log": log,
            "columns": columns.text,
            "event_time": self._config.event_time,
            "max_rows": str(self._config.max_rows),
        }
        return self._spark.readStream.format("flyball").options(**options).load()

    def _query(
        self, name: str, stream: DataFrame, handle: Callable[[DataFrame, int], None], *, close_windows: bool
    ) -> None:
        assert self._spark is not None
        # An empty batch after the last one lets the watermark close windows; without windows it is only work.
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(close_windows).lower())
        writer = stream.writeStream.queryName(name).foreachBatch(handle).outputMode("append")
        self._queries.append(writer.option("checkpointLocation", str(self._folder / "checkpoints" / name)).start())

    def _tier1_batch(self, rows: DataFrame, batch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        seen = Observation()
        rows = rows.observe(seen, F.count(F.lit(1)).alias("rows"))
        rows = rows.transform(tier1.function(self._config.tier1, self._config.source_columns, {}))
        table = rows.toArrow()
        results, malformed, ends = (_only(table, kind) for kind in (EVENT, MALFORMED, MARK))
        latest = _latest(results, self._config.event_time)
        total = self._ledger.enter(
            batch,
            rows=seen.get["rows"] - ends.num_rows,
            results=results.num_rows,
            dead_letter=malformed.num_rows,
            latest_event_time_s=latest,
        )
        bodies = _bodies(results.drop_columns(["_kind", "_error", "_body"]))
        if ends.num_rows and total.latest_event_time_s is not None:
            # The input ends here: let event time run on until the last window is closed.
            after = self._config.watermark_s + self._config.longest_window_s
            bodies.append(mark(total.latest_event_time_s + after))
        self._sinks.append(self._config.results, "tier1", batch, bodies)
        self._sinks.append(self._config.dead_letter, "tier1", batch, _dead_letters(malformed))
        self._sinks.append(LEDGER, "tier1", batch, [total.to_json()])

    def _rule_batch(self, rule: RuleBase) -> Callable[[DataFrame, int], None]:
        producer, log = f"rule-{rule.name}", rule.to or self._config.alerts
        states = [GateState()]
        if rule.gated:
            states += [GateState.from_json(body) for body in self._last_bodies(_gate_log(rule))]

        def handle(rows: DataFrame, batch: int) -> None:
            # Spark may repeat the last batch, which then starts from the state before it.
            before = next(state for state in reversed(states) if state.batch < batch)
            messages, after = rules.messages(rule, rows.toArrow().to_pylist(), batch, before)
            self._sinks.append(log, producer, batch, [json.dumps(message).encode() for message in messages])
            if rule.gated:
                self._sinks.append(_gate_log(rule), producer, batch, [after.to_json()])
            states[:] = [before, after]
            for message in messages:
                self._on_alert(message)

        return handle

    def _last_bodies(self, log: str) -> list[bytes]:
        """The last two entries of a log that has one for each batch."""
        with open_log_reader(self._url, log) as reader:
            _, end = reader.bounds(0)
            return [body for chunk in reader.read_bodies(0, max(0, end - 2), end) for body in chunk.bodies]


def _gate_log(rule: RuleBase) -> str:
    return f"gate-{rule.name}"


def _only(table: pa.Table, kind: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.equal(table["_kind"], kind))


def _latest(events: pa.Table, event_time: str) -> float | None:
    import pyarrow.compute as pc

    latest: float | None = pc.max(events[event_time]).as_py()
    return latest


def _bodies(rows: pa.Table) -> list[bytes]:
    orjson = require("orjson", "spark")
    return [orjson.dumps(row) for row in rows.to_pylist()]


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
