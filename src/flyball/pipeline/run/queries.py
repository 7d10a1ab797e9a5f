"""The streaming queries of one Spark application: started one after the other, watched and stopped together.

A query with a transient failure (a Python worker that did not start in time on a loaded machine, an unreachable
broker) is restarted from its checkpoint, a few times; any other failure is raised at once.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.backoff import delays_s
from flyball.control.record import LoopRecord
from flyball.errors import FlyballError
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.policy import failures
from flyball.pipeline.run.failure_codes import kind_of, kind_of_query, without_code
from flyball.pipeline.run.polling import POLL_S
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.telemetry import LoopRecordFile, restart_record
from flyball.pipeline.tier1.monitor import sampled_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("flyball.pipeline")

_ERROR = re.compile(r"(?:Caused by: )?([A-Za-z_][\w.]*: .*)")
_ABOUT_THE_QUERY = "=== Streaming Query ==="


class PipelineFailed(FlyballError, RuntimeError):
    """A part of the pipeline stopped by itself; what was committed before is kept."""


class FailedForGood(PipelineFailed):
    """Started again, it would fail again."""


@dataclass(slots=True)
class _Query:
    begin: Callable[[], StreamingQuery]
    running: StreamingQuery
    retries: failures.RetryState
    restarts: int = 0
    again_s: float | None = None


class Queries:
    """Their checkpoints are in `folder`: with the same folder they continue where they were. `on_record` receives
    a record of each restart; by default it goes to the lanes' records."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        config: PipelineConfig,
        folder: Path,
        on_record: Callable[[LoopRecord], None] | None = None,
    ) -> None:
        self._spark, self._url, self._config, self._folder = spark, url, config, folder
        self._on_record = on_record or LoopRecordFile(str(self._telemetry))
        self._queries: dict[str, _Query] = {}
        self._batch_errors: dict[str, Exception] = {}
        self._checking = threading.Lock()

    def stream(self, options: Mapping[str, object]) -> DataFrame:
        everywhere = {"url": self._url, "event_time": self._config.event_time}
        reader = self._spark.readStream.format("flyball")
        return reader.options(**everywhere, **{name: str(value) for name, value in options.items()}).load()

    def tier1(self, tasks: int | None = None, **changes: Any) -> DataFrame:
        """The pipeline's input, for its lanes or, with `tasks`, for the tasks of one. `changes` replace what the
        config says of `LaneOptions`."""
        config, lanes = self._config, self._config.lanes
        sample = sampled_columns(config.monitors, config.source_columns, config.event_time)
        gains = lanes.flow_gains
        by_config = LaneOptions(
            result_queue=config.results,
            queue_bytes=lanes.queue_bytes,
            free_bytes=lanes.free_bytes,
            balance=lanes.balance,
            control=lanes.control,
            max_ahead_s=config.max_ahead_s,
            telemetry=str(self._telemetry),
            gains=(gains["kp"], gains["ki"]) if gains else None,
            sample=tuple(sample.names) if config.monitors else (),
        )
        options = {
            "log": config.input,
            "columns": config.source_columns.text,
            "max_rows": config.max_rows,
            "fail_on_data_loss": str(config.fail_on_data_loss).lower(),
            "interval_s": lanes.interval_s,
            "lanes": lanes.count if tasks is None else tasks,
            "_pipeline": replace(by_config, **changes).to_json(),
        }
        return self.stream(options)

    def results(self, columns: Columns) -> DataFrame:
        """These columns of the results, in the order of event time."""
        return self.stream({"log": self._config.results, "columns": columns.text, "format": "rows"})

    def start(
        self, name: str, stream: DataFrame, handle: Callable[[DataFrame, int], None], *, close_windows: bool
    ) -> None:
        def handle_batch(rows: DataFrame, batch: int) -> None:
            try:
                handle(rows, batch)
            except Exception as error:
                self._batch_errors[name] = error  # Spark hands on its text alone
                raise

        def begin() -> StreamingQuery:
            self._batch_errors.pop(name, None)
            # An empty batch after the last one lets the watermark close windows; without windows it is only work.
            self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(close_windows).lower())
            writer = stream.writeStream.queryName(name).foreachBatch(handle_batch).outputMode("append")
            return writer.option("checkpointLocation", str(self.checkpoint(name))).start()

        self._queries[name] = _Query(begin, begin(), failures.RetryState(time.monotonic()))

    def checkpoint(self, name: str) -> Path:
        return self._folder / "checkpoints" / name

    def check(self) -> None:
        """Start again what failed in passing; raise if one of them has failed for good."""
        with self._checking:
            for name, query in self._queries.items():
                if query.again_s is not None:
                    if time.monotonic() >= query.again_s:
                        self._restart(query)
                elif (failure := query.running.exception()) is not None:
                    self._failed(name, query, str(failure))

    def restarts(self) -> dict[str, int]:
        """How often each query had to be started again."""
        return {name: query.restarts for name, query in self._queries.items()}

    def progress(self, name: str) -> list[Any]:
        """Spark's reports on the last batches of a query."""
        return list(self._queries[name].running.recentProgress)

    def finish(self, name: str | None = None) -> None:
        """Wait until a query (or each of them) has taken in everything that is there."""
        for one in self._queries if name is None else (name,):
            while True:
                query = self._queries[one].running
                try:
                    query.processAllAvailable()
                    break
                except Exception:  # Spark raises its own kinds; check() says it in one sentence
                    if query.exception() is None:
                        raise
                while self._queries[one].running is query:
                    self.check()
                    time.sleep(POLL_S)

    def stop(self) -> None:
        for query in self._queries.values():
            query.running.stop()

    @property
    def _telemetry(self) -> Path:
        return (self._folder / "loops.db").absolute()

    def _failed(self, name: str, query: _Query, failure: str) -> None:
        reason, now_s = without_code(_reason(failure)), time.monotonic()
        error = self._batch_errors.get(name)
        kind = kind_of_query(query.running) if error is None else kind_of(error)
        if not kind.is_transient:
            raise FailedForGood(f"the query {name} failed: {reason}")
        pauses_s = tuple(delays_s(failures.TRIES, first_s=failures.FIRST_S, longest_s=failures.LONGEST_S))
        query.retries, query.again_s = query.retries.fail(now_s, pauses_s, outage=kind.is_outage)
        if query.again_s is None:
            raise PipelineFailed(f"the query {name} failed {failures.TRIES + 1} times in a row: {reason}")
        log.warning("the query %s is started again in %.1f s: %s", name, query.again_s - now_s, reason)
        self._on_record(restart_record(name, now_s, query.restarts + 1, reason))

    def _restart(self, query: _Query) -> None:
        query.again_s = None
        query.restarts += 1
        query.running = query.begin()
        query.retries = query.retries.restart(time.monotonic())


def _reason(text: str) -> str:
    """The first line of Spark's message; of a traceback, the last error or cause.

    >>> _reason("Return Message: Traceback (most recent call last):\\n  File …\\nValueError: too large\\n")
    'ValueError: too large'
    """
    lines = [line for line in text.partition(_ABOUT_THE_QUERY)[0].splitlines() if line.strip()]
    if lines and "Traceback (most recent call last)" in lines[0]:
        lines = [found[1] for line in lines[1:] if (found := _ERROR.match(line))][-1:] or lines
    return lines[0].strip() if lines else "no reason given"
