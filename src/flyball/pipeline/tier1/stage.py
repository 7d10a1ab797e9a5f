"""Runs tier 1: results of a batch go to the result queues, malformed events to the dead-letter log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy.event_time import TimeLimits
from flyball.pipeline.run.checkpoint import offset_of
from flyball.pipeline.run.queries import Queries
from flyball.pipeline.split.shares import END, ShareEnd
from flyball.pipeline.sql.columns import EVENT, MALFORMED
from flyball.pipeline.tier1 import steps as tier1
from flyball.pipeline.tier1.monitor import Monitor
from flyball.pipeline.tier1.result_queues import Lanes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class TierOne:
    """Takes the batches of one query. Its `name` tells it from others that write to the same dead letters."""

    def __init__(
        self, url: str, config: PipelineConfig, sinks: LogSinks, lanes: Lanes, name: str, monitor_log: str
    ) -> None:
        self._config, self._sinks, self._lanes, self._name = config, sinks, lanes, name
        self._monitor_log = monitor_log if config.monitors else ""
        self._monitor = Monitor(sinks, url, monitor_log, config.monitors, config.source_columns, config.event_time)
        self._checkpoint: Path | None = None

    def open(self) -> None:
        self._sinks.add(self._config.dead_letter, self._name)
        self._monitor.open()

    def start(self, queries: Queries, tasks: int | None = None, **changes: Any) -> None:
        """Start the query; `tasks` and `changes` as of `Queries.tier1`."""
        self._checkpoint = queries.checkpoint(self._name)
        stream = queries.tier1(tasks, values=self._monitor_log, **changes)
        tier1.rehearse(self._config.tier1, self._config.source_columns, stream.sparkSession)
        queries.start(self._name, stream, self.handle, close_windows=False)

    def handle(self, rows: DataFrame, batch: int) -> None:
        assert self._checkpoint is not None
        config, offset = self._config, offset_of(self._checkpoint, batch)
        columns = config.source_columns.knowing(self._monitor.in_force(offset))
        limits = TimeLimits((offset or {}).get("clock_s"), config.max_ahead_s)
        steps = tier1.function(config.tier1, columns, config.event_time, limits)
        table = rows.transform(steps).toArrow()
        results, malformed, ended = (_only(table, kind) for kind in (EVENT, MALFORMED, END))
        ends = [ShareEnd.from_json(body) for body in ended["_body"].to_pylist()]
        # Dead letters first: an event is counted in its lane's totals only when it is where they say.
        self._sinks.append(self._config.dead_letter, self._name, batch, _dead_letters(malformed))
        self._lanes.write(batch, results.drop_columns(["_kind", "_error", "_body"]), malformed, ends)
        self._monitor.take(rows.sparkSession, batch, ends)


def _only(table: pa.Table, kind: str) -> pa.Table:
    import pyarrow.compute as pc

    return table.filter(pc.equal(table["_kind"], kind))


def _dead_letters(malformed: pa.Table) -> list[bytes]:
    """What a person needs to fix a malformed event: its position, its body and the error."""
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
