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

`trigger(availableNow=True)` reads in such batches what was in the log when the query started, and ends;
`trigger(once=True)` reads it in a single batch, whatever `max_rows` says, as Spark defines that trigger.

Records that were removed before they were read, and a log that was created anew, are an error that names them.
With `fail_on_data_loss` (or `failOnDataLoss`) "false" reading continues with what is there; `skipped` in the
offset counts the records that were removed. Partitions that are added are read from their beginning.

`format` "json" parses JSON objects by `columns`; "raw" hands out bodies as they are, in `_body`, and needs no
columns; "rows" reads what a pipeline wrote to its results log.

A plain RabbitMQ queue, url "amqp://localhost/?queue=events", is moved to a log first: `spool` names the broker of
that log, such as "sqlite:////data/spool.db", and `log` its name, by default that of the queue.

`lanes` tasks share the reading of each partition. In a pipeline they are the lanes of its tier 1; what that needs
besides is in one private option, `LaneOptions`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from flyball.brokers.log_reader import open_log_reader
from flyball.control.controllers.pi import Pi
from flyball.errors import InvalidValue
from flyball.pipeline.policy import FlowControl
from flyball.pipeline.policy.event_time import TimeLimits
from flyball.pipeline.policy.positions import Gap
from flyball.pipeline.run.failure_codes import coded_failures
from flyball.pipeline.source.complete_read import LossPolicy, read_complete
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.pipeline.source.parse import parser_of
from flyball.pipeline.source.plans import BatchLimits, Offset, OwnLane, Plan, Readers, SharedLanes, WholeLog
from flyball.pipeline.source.sampling import EventSample, rows_of_each
from flyball.pipeline.source.spool import spooled
from flyball.pipeline.source.time_check import reject_times
from flyball.pipeline.split.shares import END, EventTime, Share, ShareEnd
from flyball.pipeline.sql.columns import EVENT, MARK, Columns
from flyball.pipeline.telemetry import LoopRecordFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_DEFAULTS = {
    "format": "json",
    "max_rows": "500000",
    "interval_s": "2",
    "lanes": "1",
    "spool": "",
    "fail_on_data_loss": "true",
}
_SPARKS_NAMES = {"failondataloss": "fail_on_data_loss"}
"""As Spark's own sources call an option, and as options are called here."""
_PIPELINE = "_pipeline"
_OPTIONS = {"url", "log", "columns", "event_time", *_DEFAULTS}
_ENTRIES_AT_ONCE = 64


class FlyballSource(DataSource):
    """Registered as "flyball": the stream reader here, the batch reader beside it, and the sink in `writer/`.

    Options are checked before Spark plans anything.
    """

    @classmethod
    def name(cls) -> str:
        return "flyball"

    def schema(self) -> str:
        return _columns(dict(self.options)).spark_ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 (Spark's names)
        return LogStreamReader(dict(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's name)
        from flyball.pipeline.source.batch_reader import LogBatchReader

        return LogBatchReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        from flyball.pipeline.writer.sink import StreamSink

        return StreamSink(dict(self.options), schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from flyball.pipeline.writer.sink import BatchSink

        return BatchSink(dict(self.options), schema, overwrite)


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

    def __init__(
        self, share: Share, idle: Sequence[Share] = (), ends: bool = True, clock_s: float | None = None
    ) -> None:
        super().__init__((share, tuple(idle), ends, clock_s))
        self.share, self.idle, self.ends, self.clock_s = share, tuple(idle), ends, clock_s


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one long-lived process, and reads them in others.

    Spark builds this object more than once and pickles it for the readers: connections open on first use.
    """

    def __init__(self, options: dict[str, str]) -> None:
        options = {_SPARKS_NAMES.get(name.lower(), name): value for name, value in options.items()}
        unknown = sorted(set(options) - _OPTIONS - {"path", _PIPELINE})
        if unknown:
            raise InvalidValue(
                f"the source flyball has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}"
            )
        given, self._spool = spooled({**_DEFAULTS, **options})
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
        lanes = LaneOptions.from_json(given[_PIPELINE]) if _PIPELINE in given else None
        self._values = "" if lanes is None else lanes.values
        self._loss = LossPolicy(self._log, _truth(given, "fail_on_data_loss"))
        self._max_ahead_s = math.inf if lanes is None else lanes.max_ahead_s
        self._sample = () if lanes is None else lanes.sample
        self._readers = Readers(self._url)
        # An entry of a results log holds many rows.
        self._max_rows = _ENTRIES_AT_ONCE if self._format == "rows" else _positive(given, "max_rows")
        self._plan = self._plan_by(_seconds(given, "interval_s"), _positive(given, "lanes"), lanes)

    def _plan_by(self, interval_s: float, tasks: int, lanes: LaneOptions | None) -> Plan:
        most = self._max_rows
        if lanes is None:
            return WholeLog(self._readers, self._loss, BatchLimits(most, interval_s), tasks)
        flow = FlowControl(lanes.queue_bytes, lanes.free_bytes, interval_s, played=lanes.played)
        if lanes.gains is not None:
            flow = replace(flow, controller=Pi(*lanes.gains))
        on_record = LoopRecordFile(lanes.telemetry)
        bounds = BatchLimits(most, interval_s, lanes.result_queue, flow, lanes.balance, lanes.control, on_record)
        if lanes.lane is not None:
            return OwnLane(self._readers, self._url, bounds, lanes.lane, tasks)
        return SharedLanes(self._readers, self._url, self._loss, bounds, tasks)

    @coded_failures()
    def initialOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        self._keep_spooling()
        return self._plan.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Spark hands this to `latestOffset`, except for `trigger(once=True)`, which gets `ReadAllAvailable`.

        The base class returns `ReadAllAvailable` here too, so the two could not be told apart.
        """
        return ReadMaxRows(self._max_rows)

    @coded_failures()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        self._spool_what_waits()
        self._whole_log().end_at_latest()

    @coded_failures()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 (Spark's name)
        """How far the next batch goes; returning `start` means that there is none now.

        What a repeat of the batch needs to be the same is part of the offset: ranges, shares, values.
        """
        if isinstance(limit, ReadAllAvailable):
            self._spool_what_waits()
            end = self._whole_log().all_after(start)
        else:
            self._keep_spooling()
            end = self._plan.following(start, time.monotonic())
        if end is not start and self._max_ahead_s < math.inf:
            end["clock_s"] = time.time()
        if end is not start and self._values:
            end["values"] = self._readers.last_header(self._values).get("values", {})
        return end

    @coded_failures()
    def reportLatestOffset(self) -> Offset:  # noqa: N802 (Spark's name)
        return self._plan.latest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ends, clock_s = self._plan.ends, end.get("clock_s")
        return [LaneShare(task.share, task.idle, ends, clock_s) for task in self._plan.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with coded_failures():
            yield from self._rows(partition)

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LaneShare)
        began_s = time.monotonic()
        if self._spool is not None:
            self._spool.check_here()
        parser = parser_of(self._format, self._columns, self._event_time)
        seen = EventTime()
        limits = TimeLimits(partition.clock_s, self._max_ahead_s)
        sample = EventSample(self._sample, rows_of_each(len(partition.share.members))) if self._sample else None
        with open_log_reader(self._url, self._log) as reader:
            for ranges, complete in ((partition.share.ranges, True), (partition.share.more, False)):
                for number, first, stop in ranges:
                    for chunk in read_complete(reader, number, first, stop, self._loss):
                        rows = parser.parse(number, chunk.first_offset, chunk.bodies, chunk.offsets)
                        if self._format == "json":
                            rows = reject_times(rows, chunk.bodies, self._event_time, limits)
                        if partition.ends:
                            _look(rows, self._event_time, seen, complete=complete)
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

        own = ShareEnd.of(partition.share, seen, seconds)
        ends = [
            own if sample is None else replace(own, sample=sample.rows(), sampled_events=sample.events),
            *(ShareEnd.of(share, EventTime(), 0.0) for share in partition.idle),
        ]
        rows = [{"_kind": END, "_body": end.to_json()} for end in ends]
        return pa.RecordBatch.from_pylist(rows, schema=self._columns.row_schema())

    def bounds(self) -> list[tuple[int, int]]:
        """The first offset of each partition of the log, and the one its next record will get."""
        return self._readers.bounds(self._log)

    def report_loss(self, gap: Gap) -> None:
        """An error, or a warning, as `fail_on_data_loss` says."""
        self._loss.report([gap])

    def _whole_log(self) -> WholeLog:
        if not isinstance(self._plan, WholeLog):
            raise InvalidValue(
                "the lanes of a pipeline run until they are stopped: they have no trigger availableNow or once"
            )
        return self._plan

    def _keep_spooling(self) -> None:
        if self._spool is not None:
            self._spool.keep_moving()

    def _spool_what_waits(self) -> None:
        if self._spool is not None:
            self._spool.move_what_waits()

    def commit(self, end: Offset) -> None:
        """Nothing to do: the log keeps its records by its own retention."""

    def stop(self) -> None:
        self._readers.close()


def _look(rows: pa.RecordBatch, event_time: str, seen: EventTime, *, complete: bool) -> None:
    import pyarrow.compute as pc

    kinds = rows.column("_kind")
    marks_s: list[float] = []
    sources: list[str] = []
    if kinds.null_count or pc.any(pc.equal(kinds, MARK)).as_py():
        marks = rows.filter(pc.equal(kinds, MARK))
        marks_s = marks.column(event_time).to_pylist()
        sources = [(body or b"").decode() for body in marks.column("_body").to_pylist()]
    seen.bodies += rows.num_rows - len(marks_s)
    if complete:
        events = rows.filter(pc.equal(kinds, EVENT)) if marks_s else rows
        seen.see(pc.max(events.column(event_time)).as_py(), marks_s)
        seen.promised(zip(sources, marks_s, strict=True))


def _positive(options: dict[str, str], name: str) -> int:
    text = options[name]
    if not text.isdecimal() or int(text) < 1:
        raise InvalidValue(f"option {name} of the source flyball must be an integer >= 1, got {text!r}")
    return int(text)


def _truth(options: dict[str, str], name: str) -> bool:
    text = options[name].lower()
    if text not in ("true", "false"):
        raise InvalidValue(f"option {name} of the source flyball must be true or false, got {options[name]!r}")
    return text == "true"


def _seconds(options: dict[str, str], name: str) -> float:
    try:
        value = float(options[name])
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise InvalidValue(f"option {name} of the source flyball must be > 0 s, got {options[name]!r}")
    return value
