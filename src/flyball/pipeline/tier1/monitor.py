"""The monitor: statistics of the events that come in, fed back to tier 1 as thresholds.

    sample of batch k (before the filter) → statistics over a window → carried in the offset of batch k + 1

Every batch makes one entry of the monitor's log: its sample, and the values that follow from it and the entries
before. The source puts the last values into the offset of the next batch, so a batch that Spark repeats uses
the same thresholds as the first time, and its entry, written again, is the same and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.config.monitors import MonitorConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import last_bodies
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.source import sampling
from flyball.pipeline.split.shares import ShareEnd
from flyball.pipeline.sql.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PRODUCER = "monitor"
_LOG_BYTES = 64_000_000
_MOST_BATCHES = 1024
_MOST_ROWS = 50_000
_LEAST_ROWS = 50
"""Fewer sampled events say nothing about a quantile: until then `initial` holds."""

_TIME, _WEIGHT = "_time", "_weight"


def monitor_name(results: str) -> str:
    """The log of a pipeline's monitor.

    >>> monitor_name("results")
    'results.monitor'
    """
    return f"{results}.monitor"


def latest_values(url: str, results: str) -> dict[str, float]:
    """The latest values of the pipeline's monitors; empty before its first batch."""
    with open_log_reader(url, monitor_name(results)) as reader:
        return next((dict(entry.decode(body).header["values"]) for body in last_bodies(reader, 1)), {})


@dataclass(frozen=True, slots=True)
class _Batch:
    """The sample of one batch: event times, how many events each sampled one stands for, and a column for each
    monitor with the value of the events it chose (null: not chosen)."""

    number: int
    values: Mapping[str, float]
    rows: pa.Table
    time_s: float


def _batch(number: int, values: Mapping[str, float], rows: pa.Table) -> _Batch:
    """Its time is that of its middle: one wrong clock does not move it."""
    if rows.num_rows == 0:
        return _Batch(number, values, rows, -np.inf)
    return _Batch(number, values, rows, sampling.quantile(_floats(rows[_TIME]), _floats(rows[_WEIGHT]), 0.5))


class Monitor:
    """Computes the values for the next batch from the samples of batches."""

    def __init__(
        self,
        sinks: LogSinks,
        url: str,
        log: str,
        monitors: Sequence[MonitorConfig],
        columns: Columns,
        event_time: str,
    ) -> None:
        self._sinks, self._url, self._log = sinks, url, log
        self._monitors, self._columns, self._event_time = tuple(monitors), columns, event_time
        self._states: list[list[_Batch]] = [[]]

    def open(self) -> None:
        """Prepare the log and continue where an earlier run stopped."""
        if not self._monitors:
            return
        self._sinks.add(self._log, _PRODUCER, max_bytes=_LOG_BYTES)
        with open_log_reader(self._url, self._log) as reader:
            entries = [entry.decode(body) for body in last_bodies(reader, _MOST_BATCHES)]
        # By number: a broker that does not drop repeats may hold an entry twice.
        found = {one.header["batch"]: one for one in entries}
        for number in sorted(found):
            self._remember(self._states[-1], _batch(number, found[number].header["values"], found[number].rows))

    def in_force(self, offset: Mapping[str, Any] | None) -> dict[str, float]:
        """The values that a batch uses, from its offset."""
        known = (offset or {}).get("values", {})
        return {one.name: float(known.get(one.name, one.initial)) for one in self._monitors}

    def take(self, spark: SparkSession, batch: int, ends: Iterable[ShareEnd]) -> None:
        """The sample of a batch, which may be a repeat."""
        if not self._monitors:
            return
        before = next(state for state in reversed(self._states) if not state or state[-1].number < batch)
        rows = self._judged(
            spark, _gathered(ends, sampled_columns(self._monitors, self._columns, self._event_time))
        )
        known = before[-1].values if before else {}
        within = [*before, _batch(batch, known, rows)]
        values = {
            one.name: _value(one, _window(within, one.window_s), known.get(one.name)) for one in self._monitors
        }
        self._sinks.append(self._log, _PRODUCER, batch, [entry.encode({"batch": batch, "values": values}, rows)])
        self._remember(before, _batch(batch, values, rows))

    def _remember(self, before: list[_Batch], newest: _Batch) -> None:
        """Spark may repeat the last batch, which then starts from what was before it."""
        longest_s = max(one.window_s for one in self._monitors)
        self._states = [before, _bounded(_window([*before, newest], longest_s))]

    def _judged(self, spark: SparkSession, sample: pa.Table) -> pa.Table:
        """The sample as it is kept: a column for each monitor."""
        import pyarrow as pa
        import pyarrow.compute as pc

        chosen: dict[str, Any] = {}
        if any(one.has_condition for one in self._monitors) and sample.num_rows:
            tests = [f"({one.where_sql(self._columns)}) AS `{one.name}`" for one in self._monitors]
            verdict = spark.createDataFrame(sample).selectExpr(*tests).toArrow()
            chosen = {one.name: verdict[one.name] for one in self._monitors if one.has_condition}
        ones = pa.array(np.ones(sample.num_rows))
        out = {_TIME: sample[self._event_time].cast(pa.float64(), safe=False), _WEIGHT: sample[_WEIGHT]}
        for one in self._monitors:
            value = ones if one.column is None else sample[one.column].cast(pa.float64(), safe=False)
            out[one.name] = pc.if_else(chosen[one.name], value, None) if one.name in chosen else value
        return pa.table(out)


def sampled_columns(monitors: Sequence[MonitorConfig], columns: Columns, event_time: str) -> Columns:
    """The columns that the monitors need."""
    wanted = {event_time, *(one.column for one in monitors)}
    for one in monitors:
        wanted |= {name for name in columns.names if f"`{name}`" in one.where_sql(columns)}
    return columns.only([name for name in columns.names if name in wanted])


def _gathered(ends: Iterable[ShareEnd], columns: Columns) -> pa.Table:
    """The samples of all shares; `_weight`: how many events of all lanes a sampled one stands for."""
    import pyarrow as pa

    schema = columns.event_schema()
    parts = [schema.append(pa.field(_WEIGHT, pa.float64())).empty_table()]
    for end in sorted(ends, key=lambda end: end.lane):
        if not end.sample:
            continue
        rows = pa.Table.from_pydict(end.sample, schema=schema)
        weight = end.sampled_events / max(1, rows.num_rows) * end.sampling_weight
        parts.append(rows.append_column(_WEIGHT, pa.array(np.full(rows.num_rows, weight))))
    return pa.concat_tables(parts)


def _window(batches: Sequence[_Batch], window_s: float) -> list[_Batch]:
    """The batches of the last `window_s` of event time; the newest is always among them."""
    newest_s = max((one.time_s for one in batches), default=-np.inf)
    return [one for one in batches[:-1] if one.time_s > newest_s - window_s] + list(batches[-1:])


def _bounded(batches: Sequence[_Batch]) -> list[_Batch]:
    """The newest batches and rows, within bounds: at high rates the window is shorter."""
    kept: list[_Batch] = []
    rows = 0
    for one in reversed(batches[-_MOST_BATCHES:]):
        rows += one.rows.num_rows
        if rows > _MOST_ROWS and kept:
            break
        kept.append(one)
    return kept[::-1]


def _value(monitor: MonitorConfig, batches: Sequence[_Batch], known: float | None) -> float:
    """The monitor's value; with too few events the previous one."""
    fallback = monitor.initial if known is None else known
    parts = [one.rows for one in batches if monitor.name in one.rows.column_names]  # younger than some entries
    values, weights, times = (
        np.concatenate([np.empty(0), *(_floats(rows[name]) for rows in parts)])
        for name in (monitor.name, _WEIGHT, _TIME)
    )
    chosen = ~np.isnan(values)
    if monitor.kind == "rate":
        found = sampling.rate(times, weights, chosen) if times.size >= _LEAST_ROWS else None
        return fallback if found is None else found
    if np.count_nonzero(chosen) < _LEAST_ROWS or monitor.quantile is None:
        return fallback
    return sampling.quantile(values[chosen], weights[chosen], monitor.quantile)


def _floats(column: Any) -> sampling.Floats:
    found: sampling.Floats = np.asarray(column.to_numpy(), np.float64)
    return found
