"""`spark.readStream.format("flyball")`: a replayable log as a stream of typed rows.

    spark.dataSource.register(FlyballSource)
    events = (
        spark.readStream.format("flyball")
        .option("url", "sqlite:///events.db")
        .option("log", "events")
        .option("columns", "kind string, ip string, load double, event_time double")
        .option("event_time", "event_time")
        .load()
    )

Every body of the log becomes one row; `_kind` tells events, malformed ones (with `_error` and `_body`) and marks
apart. A batch is a range of offsets per partition, so that Spark reads exactly the same rows when it has to
repeat one. How many rows a batch takes in is decided anew each time: at most `max_rows`, and no more than earlier
batches got through in `interval_s`, so that a backlog of any size is worked off in batches of the same length.

`format` "json" parses JSON objects by `columns`; "raw" hands out bodies as they are, in `_body`, and needs no
columns; "rows" reads what a pipeline wrote to its results log.

`lanes` tasks share the reading of each partition. With `result_queue` they are the lanes of a pipeline's tier 1: a
controller shares each batch among them and holds each lane's result queue (`queue_bytes`) at `free_bytes` of
free space, and a lane ends its share with a row of kind `end`, which carries a random sample of the columns that
`sample` names. `values` names a log whose last entry's values go into each batch's offset.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.errors import InvalidValue
from flyball.pipeline import entry, policy
from flyball.pipeline.columns import EVENT, MARK, Columns
from flyball.pipeline.flow import Admission
from flyball.pipeline.parse import parser_of
from flyball.pipeline.policy import FlowControl
from flyball.pipeline.queues import QueueLevels, lanes_name, last_bodies
from flyball.pipeline.sampling import EventSample, rows_of_each
from flyball.pipeline.shares import END, EventTime, Share, ShareEnd, cut

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

_DEFAULTS = {
    "format": "json",
    "max_rows": "500000",
    "interval_s": "2",
    "lanes": "1",
    "result_queue": "",
    "queue_bytes": "64000000",
    "free_bytes": "40000000",
    "balance": "true",
    "values": "",
    "sample": "",
}
_OPTIONS = {"url", "log", "columns", "event_time", *_DEFAULTS}
_ENTRIES_AT_ONCE = 64
_LOOK_FOR_LANES_S = 1.0


class FlyballSource(DataSource):
    """Registered as "flyball"; checks its options before Spark plans anything."""

    @classmethod
    def name(cls) -> str:
        return "flyball"

    def schema(self) -> str:
        return _columns(dict(self.options)).spark_ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 (Spark's names)
        return LogStreamReader(dict(self.options))


def _required(options: Any, name: str) -> str:
    value = options.get(name)
    if not value:
        raise InvalidValue(f"the source flyball needs the option {name!r}")
    return str(value)


def _columns(options: dict[str, str]) -> Columns:
    if options.get("format") == "raw":
        if options.get("columns"):
            raise InvalidValue("format raw hands bodies out as they are: leave the option 'columns' out")
        return Columns(())
    return Columns.parse(_required(options, "columns"))


class LaneShare(InputPartition):
    """What one Spark task reads: a lane's share, and on behalf of lanes without any, their empty ones."""

    def __init__(self, share: Share, idle: Sequence[Share] = (), ends: bool = True) -> None:
        super().__init__((share, tuple(idle), ends))
        self.share, self.idle, self.ends = share, tuple(idle), ends


class LogStreamReader(DataSourceStreamReader):
    """Plans batches in one long-lived process, and reads them in others.

    Spark builds this object more than once and pickles it for the readers: connections open on first use.
    """

    def __init__(self, options: dict[str, str]) -> None:
        unknown = sorted(set(options) - _OPTIONS - {"path"})
        if unknown:
            raise InvalidValue(
                f"the source flyball has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}"
            )
        given = {**_DEFAULTS, **options}
        self._url = _required(given, "url")
        self._log = _required(given, "log")
        self._format = given["format"]
        self._columns = _columns(given)
        self._event_time = "" if self._format == "raw" else _required(given, "event_time")
        if self._event_time and self._event_time not in self._columns.names:
            raise InvalidValue(
                f"the event time {self._event_time!r} is none of the columns {', '.join(self._columns.names)}"
            )
        parser_of(self._format, self._columns, self._event_time)  # refuses an unknown format
        self._max_rows = _positive(given, "max_rows")
        self._interval_s = _seconds(given, "interval_s")
        self._lane_count = _positive(given, "lanes")
        self._result_queue = given["result_queue"]
        self._flow = FlowControl(_positive(given, "queue_bytes"), _positive(given, "free_bytes"), self._interval_s)
        self._balance = _flag(given, "balance")
        self._values = given["values"]
        self._sample = [name.strip() for name in given["sample"].split(",") if name.strip()]
        for name in self._sample:
            if name not in self._columns.names:
                raise InvalidValue(
                    f"option sample of the source flyball names {name!r}, which is none of the columns "
                    f"{', '.join(self._columns.names)}"
                )
        self._open_readers: dict[str, LogReader] = {}
        self._admission: Admission | None = None
        self._looked_s = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_readers": {}, "_admission": None}

    def _reader(self, log: str | None = None) -> LogReader:
        name = log or self._log
        if name not in self._open_readers:
            self._open_readers[name] = open_log_reader(self._url, name)
        return self._open_readers[name]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        reader = self._reader()
        return {"next": [reader.bounds(partition)[0] for partition in range(reader.partitions())]}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """How far the next batch goes; returning `start` means that there is none now.

        What a repeat of the batch needs to be the same is part of the offset: ranges, shares, values.
        """
        starts = start["next"]
        ends = [self._reader().bounds(partition)[1] for partition in range(len(starts))]
        now_s = time.monotonic()
        admission = self._admitting(now_s)
        backlog = sum(max(0, end - first) for first, end in zip(starts, ends, strict=True))
        decided = admission.decide(now_s, backlog)
        if decided.events <= 0:
            return start
        stops = _within_budget(starts, ends, decided.events)
        events = sum(stops) - sum(starts)
        if events <= 0:
            return start
        end: dict[str, Any] = {"next": stops}
        counts: Sequence[int] = [events]
        if self._result_queue:
            before = start.get("lanes", [])
            carry = start["carry"] if before == list(admission.lanes) else [0.0] * len(admission.lanes)
            counts, left_over = policy.split(events, decided.weights, carry)
            end |= {
                "lanes": list(admission.lanes),
                "left": sorted(set(before) - set(admission.lanes)),
                "shares": cut(starts, stops, counts, admission.lanes),
                "carry": list(left_over),
            }
        if self._values:
            end["values"] = self._last_values()
        admission.begin(now_s, counts)
        return end

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        reader = self._reader()
        return {"next": [reader.bounds(partition)[1] for partition in range(reader.partitions())]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if "shares" not in end:
            pieces = [
                (number, piece.start, piece.stop)
                for number, (first, stop) in enumerate(zip(start["next"], end["next"], strict=True))
                for piece in _in_parts(range(first, stop), self._lane_count)
            ]
            return [LaneShare(Share(number, (piece,)), ends=False) for number, piece in enumerate(pieces)]
        members = tuple(end["lanes"])
        shares = [
            Share(lane, tuple((part[0], part[1], part[2]) for part in ranges), members)
            for lane, ranges in zip(members, end["shares"], strict=True)
        ]
        busy = [share for share in shares if share.events]
        idle = [share for share in shares if not share.events]
        idle += [Share(lane, (), members, last=True) for lane in end["left"]]
        return [LaneShare(share, idle if number == 0 else ()) for number, share in enumerate(busy)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LaneShare)
        began_s = time.monotonic()
        parser = parser_of(self._format, self._columns, self._event_time)
        seen = EventTime()
        sample = EventSample(self._sample, rows_of_each(len(partition.share.members))) if self._sample else None
        with open_log_reader(self._url, self._log) as reader:
            for number, first, stop in partition.share.ranges:
                for chunk in reader.read_bodies(number, first, stop):
                    rows = parser.parse(number, chunk.first_offset, chunk.bodies, chunk.offsets)
                    if partition.ends:
                        _look(rows, self._event_time, seen)
                    if sample is not None:
                        sample.see(rows)
                    yield rows
        if partition.ends:
            # The time in between is the lane's whole work: Spark takes a batch of rows when it is done with the
            # one before.
            yield self._ends(partition, seen, sample, time.monotonic() - began_s)

    def _ends(
        self, partition: LaneShare, seen: EventTime, sample: EventSample | None, seconds: float
    ) -> pa.RecordBatch:
        import pyarrow as pa

        own = _end_of(partition.share, seen, seconds)
        ends = [
            own if sample is None else replace(own, sample=sample.rows(), sampled_events=sample.events),
            *(_end_of(share, EventTime(), 0.0) for share in partition.idle),
        ]
        rows = [{"_kind": END, "_body": end.to_json()} for end in ends]
        return pa.RecordBatch.from_pylist(rows, schema=self._columns.row_schema())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log keeps its records by its own retention."""

    def stop(self) -> None:
        for reader in self._open_readers.values():
            reader.close()

    def _admitting(self, now_s: float) -> Admission:
        if self._admission is not None and (not self._result_queue or now_s - self._looked_s < _LOOK_FOR_LANES_S):
            return self._admission
        self._looked_s = now_s
        if not self._result_queue:
            most = _ENTRIES_AT_ONCE if self._format == "rows" else self._max_rows
            self._admission = Admission((0,), most, self._interval_s)
            return self._admission
        lanes = tuple(range(self._wanted_lanes()))
        if self._admission is None or self._admission.lanes != lanes:
            levels = QueueLevels(self._url, self._result_queue)
            self._admission = Admission(lanes, self._max_rows, self._interval_s, levels, self._flow, self._balance)
        return self._admission

    def _wanted_lanes(self) -> int:
        """As many as were asked for last while running, else as the option says."""
        try:
            for body in last_bodies(self._reader(lanes_name(self._result_queue)), 1):
                return int(json.loads(body)["lanes"])
        except NoSuchChannel:
            pass
        return self._lane_count

    def _last_values(self) -> dict[str, Any]:
        try:
            for body in last_bodies(self._reader(self._values), 1):
                values: dict[str, Any] = entry.header_of(body)["values"]
                return values
        except NoSuchChannel:
            pass
        return {}


def _end_of(share: Share, seen: EventTime, seconds: float) -> ShareEnd:
    return ShareEnd(
        share.lane, share.ranges, share.members, share.last, seen.bodies, seconds, seen.latest_s, seen.ends
    )


def _look(rows: pa.RecordBatch, event_time: str, seen: EventTime) -> None:
    import pyarrow.compute as pc

    kinds = rows.column("_kind")
    marks_s: list[float] = []
    if kinds.null_count or pc.any(pc.equal(kinds, MARK)).as_py():
        marks_s = rows.filter(pc.equal(kinds, MARK)).column(event_time).to_pylist()
    events = rows.filter(pc.equal(kinds, EVENT)) if marks_s else rows
    seen.see(pc.max(events.column(event_time)).as_py(), marks_s, rows.num_rows)


def _within_budget(starts: Sequence[int], ends: Sequence[int], budget: int) -> list[int]:
    """How far each partition may go so that together they bring at most `budget` rows.

    Partitions with less than an equal share leave the rest of it to the others, so none starves.

    >>> _within_budget([0, 0, 0], [10, 100, 100], 90)
    [10, 40, 40]
    """
    waiting = [max(0, end - start) for start, end in zip(starts, ends, strict=True)]
    stops = list(starts)
    smallest_first = sorted(range(len(waiting)), key=lambda number: waiting[number])
    for others, number in zip(range(len(waiting), 0, -1), smallest_first, strict=True):
        admitted = min(waiting[number], budget // others)
        stops[number] += admitted
        budget -= admitted
    return stops


def _in_parts(offsets: range, parts: int) -> list[range]:
    """Cut into so many pieces of almost the same length; none is empty.

    >>> _in_parts(range(5, 10), 2), _in_parts(range(5, 6), 2), _in_parts(range(5, 5), 2)
    ([range(5, 7), range(7, 10)], [range(5, 6)], [])
    """
    cuts = [offsets.start + len(offsets) * number // parts for number in range(parts + 1)]
    return [range(first, stop) for first, stop in pairwise(cuts) if stop > first]


def _positive(options: dict[str, str], name: str) -> int:
    text = options[name]
    if not text.isdecimal() or int(text) < 1:
        raise InvalidValue(f"option {name} of the source flyball has to be a whole number from 1, not {text!r}")
    return int(text)


def _seconds(options: dict[str, str], name: str) -> float:
    try:
        value = float(options[name])
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise InvalidValue(f"option {name} of the source flyball has to be above 0 s, not {options[name]!r}")
    return value


def _flag(options: dict[str, str], name: str) -> bool:
    if options[name] not in ("true", "false"):
        raise InvalidValue(f"option {name} of the source flyball is true or false, not {options[name]!r}")
    return options[name] == "true"
