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
repeat one. `max_rows` bounds a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.errors import InvalidValue
from flyball.pipeline.columns import Columns
from flyball.pipeline.parse import JsonParser

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

_OPTIONS = {"url", "log", "columns", "event_time", "max_rows"}
_DEFAULT_MAX_ROWS = 100_000


class FlyballSource(DataSource):
    """Registered as "flyball"; checks its options before Spark plans anything."""

    @classmethod
    def name(cls) -> str:
        return "flyball"

    def schema(self) -> str:
        return Columns.parse(_required(self.options, "columns")).spark_ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 (Spark's names)
        return LogStreamReader(dict(self.options))


def _required(options: Any, name: str) -> str:
    value = options.get(name)
    if not value:
        raise InvalidValue(f"the source flyball needs the option {name!r}")
    return str(value)


class OffsetRange(InputPartition):
    """The part of one log partition that one Spark task reads."""

    def __init__(self, partition: int, start: int, stop: int) -> None:
        super().__init__((partition, start, stop))
        self.partition, self.start, self.stop = partition, start, stop


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
        self._url = _required(options, "url")
        self._log = _required(options, "log")
        self._columns = Columns.parse(_required(options, "columns"))
        self._event_time = _required(options, "event_time")
        if self._event_time not in self._columns.names:
            raise InvalidValue(
                f"the event time {self._event_time!r} is none of the columns {', '.join(self._columns.names)}"
            )
        self._max_rows = _positive(options.get("max_rows", str(_DEFAULT_MAX_ROWS)), "max_rows")
        self._open_reader: LogReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_reader": None}

    def _reader(self) -> LogReader:
        if self._open_reader is None:
            self._open_reader = open_log_reader(self._url, self._log)
        return self._open_reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        reader = self._reader()
        return {"next": [reader.bounds(partition)[0] for partition in range(reader.partitions())]}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        ends = [self._reader().bounds(partition)[1] for partition in range(len(start["next"]))]
        return {"next": _within_budget(start["next"], ends, self._max_rows)}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        reader = self._reader()
        return {"next": [reader.bounds(partition)[1] for partition in range(reader.partitions())]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pairs = zip(start["next"], end["next"], strict=True)
        return [OffsetRange(number, first, stop) for number, (first, stop) in enumerate(pairs) if stop > first]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        parser = JsonParser(self._columns, self._event_time)
        with open_log_reader(self._url, self._log) as reader:
            for chunk in reader.read_bodies(partition.partition, partition.start, partition.stop):
                yield parser.parse(partition.partition, chunk.first_offset, chunk.bodies, chunk.offsets)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the log keeps its records by its own retention."""

    def stop(self) -> None:
        if self._open_reader is not None:
            self._open_reader.close()


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


def _positive(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidValue(f"option {name} of the source flyball has to be a whole number from 1, not {text!r}")
    return int(text)
