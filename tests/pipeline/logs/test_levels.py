"""The tail of a log is found whatever holes its offsets have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pytest

from flyball.brokers.log_reader import LogChunk
from flyball.pipeline.logs.levels import last_bodies


class HoledLog:
    """A log whose broker used some offsets for itself, as RabbitMQ streams and Kafka do."""

    def __init__(self, offsets: list[int], end: int, first: int = 0) -> None:
        self._offsets, self._end, self._first = offsets, end, first

    def partitions(self) -> int:
        return 1

    def bounds(self, partition: int) -> tuple[int, int]:
        assert partition == 0
        return self._first, self._end

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        assert partition == 0
        found = [offset for offset in self._offsets if start <= offset < stop]
        if found:
            yield LogChunk(found[0], [b"%d" % offset for offset in found], found)

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None: ...


@pytest.mark.parametrize(
    ("offsets", "end", "most", "wanted"),
    [
        ([], 0, 1, []),
        ([], 100, 1, []),
        ([0, 1, 2], 3, 2, [b"1", b"2"]),
        ([5], 1000, 1, [b"5"]),
        ([3, 5, 900], 1000, 2, [b"5", b"900"]),
        ([3, 5], 1000, 3, [b"3", b"5"]),
    ],
)
def test_the_last_bodies_are_found_behind_holes(
    offsets: list[int], end: int, most: int, wanted: list[bytes]
) -> None:
    assert last_bodies(HoledLog(offsets, end), most) == wanted


def test_nothing_is_looked_for_before_the_first_offset_still_there() -> None:
    assert last_bodies(HoledLog([70], end=100, first=60), 2) == [b"70"]
