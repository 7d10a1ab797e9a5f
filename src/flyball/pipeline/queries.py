"""The streaming queries of one Spark application: started one after the other, watched and stopped together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.errors import FlyballError
from flyball.pipeline.columns import Columns
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.monitor import sampled_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class PipelineFailed(FlyballError, RuntimeError):
    """A part of the pipeline stopped by itself; what was committed before is kept."""


class Queries:
    """Their checkpoints are in `folder`: with the same folder they go on where they were."""

    def __init__(self, spark: SparkSession, url: str, config: PipelineConfig, folder: Path) -> None:
        self._spark, self._url, self._config, self._folder = spark, url, config, folder
        self._queries: dict[str, StreamingQuery] = {}

    def stream(self, options: Mapping[str, object]) -> DataFrame:
        everywhere = {"url": self._url, "event_time": self._config.event_time}
        reader = self._spark.readStream.format("flyball")
        return reader.options(**everywhere, **{name: str(value) for name, value in options.items()}).load()

    def tier1(self, **options: object) -> DataFrame:
        """The pipeline's input, for lanes; `options` of the source besides those that the config gives."""
        config, lanes = self._config, self._config.lanes
        sample = sampled_columns(config.monitors, config.source_columns, config.event_time)
        by_config: dict[str, object] = {
            "log": config.input,
            "sample": ",".join(sample.names) if config.monitors else "",
            "columns": config.source_columns.text,
            "max_rows": config.max_rows,
            "interval_s": lanes.interval_s,
            "lanes": lanes.count,
            "result_queue": config.results,
            "queue_bytes": lanes.queue_bytes,
            "free_bytes": lanes.free_bytes,
            "balance": str(lanes.balance).lower(),
            "control": str(lanes.control).lower(),
            "telemetry": (self._folder / "loops.db").absolute(),
            "flow": json.dumps(lanes.flow_gains) if lanes.flow_gains else "",
        }
        return self.stream({**by_config, **options})

    def results(self, columns: Columns) -> DataFrame:
        """These columns of the results, in the order of event time."""
        return self.stream({"log": self._config.results, "columns": columns.text, "format": "rows"})

    def start(
        self, name: str, stream: DataFrame, handle: Callable[[DataFrame, int], None], *, close_windows: bool
    ) -> None:
        # An empty batch after the last one lets the watermark close windows; without windows it is only work.
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(close_windows).lower())
        writer = stream.writeStream.queryName(name).foreachBatch(handle).outputMode("append")
        self._queries[name] = writer.option("checkpointLocation", str(self.checkpoint(name))).start()

    def checkpoint(self, name: str) -> Path:
        return self._folder / "checkpoints" / name

    def check(self) -> None:
        """Raise if one of them has failed."""
        for name, query in self._queries.items():
            failure = query.exception()
            if failure is not None:
                raise PipelineFailed(f"the query {name} failed: {_first_line(str(failure))}")

    def progress(self, name: str) -> list[Any]:
        """Spark's reports on the last batches of a query."""
        return list(self._queries[name].recentProgress)

    def finish(self, name: str | None = None) -> None:
        """Wait until a query (or each of them) has taken in everything that is there."""
        for one in self._queries if name is None else (name,):
            try:
                self._queries[one].processAllAvailable()
            except Exception:  # Spark raises its own kinds; check() says it in one sentence
                self.check()
                raise

    def stop(self) -> None:
        for query in self._queries.values():
            query.stop()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
