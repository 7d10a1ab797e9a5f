"""`spark.read.format("flyball")`: what is in a log now, or a range of offsets of it, as a table.

    spark.read.format("flyball").option("url", …).option("log", "events").option("format", "raw").load()

The options are those of the stream, except for those about batches and queues. `startingOffsets` and
`endingOffsets` are "earliest" and "latest", or JSON with offsets by partition: {"0": 100, "1": 250}. The end is
not read; a partition that is not named is read from its beginning, or to its end. The end is fixed when the table
is first used: what comes later is in another `load()`. Every partition is read by `lanes` tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from flyball.errors import InvalidValue
from flyball.pipeline.policy.positions import Gap
from flyball.pipeline.run.failure_codes import coded_failures
from flyball.pipeline.source.datasource import LogStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

_STARTING, _ENDING = "startingOffsets", "endingOffsets"
_RANGE = {"startingoffsets": _STARTING, "endingoffsets": _ENDING}
_OF_STREAMS = {"max_rows": "read in one job", "interval_s": "read in one job", "spool": "a log"}


class LogBatchReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        others = {name: value for name, value in options.items() if _plain(name) not in _RANGE}
        for name, why in _OF_STREAMS.items():
            if name in others:
                raise InvalidValue(
                    f"option {name} is for spark.readStream; what spark.read reads is {why}: leave it out"
                )
        given = {_RANGE[_plain(name)]: value for name, value in options.items() if _plain(name) in _RANGE}
        self._starting = _offsets(_STARTING, given.get(_STARTING, "earliest"), "earliest")
        self._ending = _offsets(_ENDING, given.get(_ENDING, "latest"), "latest")
        self._stream = LogStreamReader(others)

    def partitions(self) -> Sequence[InputPartition]:
        with coded_failures():
            bounds = self._stream.bounds()
        for name, wanted in ((_STARTING, self._starting), (_ENDING, self._ending)):
            unknown = sorted(set(wanted) - set(range(len(bounds))))
            if unknown:
                raise InvalidValue(
                    f"option {name} names partition {unknown[0]}, the log has partitions 0 to {len(bounds) - 1}"
                )
        starts: list[int] = []
        ends: list[int] = []
        for number, (first, end) in enumerate(bounds):
            start, stop = self._starting.get(number, first), self._ending.get(number, end)
            if not start <= stop <= end:
                raise InvalidValue(
                    f"partition {number} of the log ends at {end}, so offsets {start} to before {stop} cannot be "
                    f"read: {_STARTING} must be <= {_ENDING}, and that <= {end}"
                )
            if start < first:
                self._stream.report_loss(Gap(number, start, first, end))
            starts.append(min(max(start, first), stop))
            ends.append(stop)
        return list(self._stream.partitions({"next": starts}, {"next": ends})) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(()) if partition.value is None else self._stream.read(partition)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _offsets(name: str, text: str, everything: str) -> dict[int, int]:
    """Offsets by partition; none: everything.

    >>> _offsets("startingOffsets", '{"0": 7}', "earliest"), _offsets("startingOffsets", "earliest", "earliest")
    ({0: 7}, {})
    """
    if text.lower() == everything:
        return {}
    try:
        offsets = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError):
        offsets = {0: -1}
    if not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
        raise InvalidValue(
            f"option {name} of the source flyball must be {everything} or offsets by partition such as "
            f'{{"0": 100}}, got {text!r}'
        )
    return offsets
