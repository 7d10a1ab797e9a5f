"""Names, tails and levels of the logs between the lanes and the combiner.

A lane's result queue is a log of the broker; the combiner publishes in a small log of its own, the cursor, how far
it has read each of them. The free space of a queue is its size minus what was appended and not read yet, both in
bytes of entries: `before` in an entry's header counts the bytes appended before that entry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.pipeline.logs.row_batch import header_of
from flyball.pipeline.logs.totals import Totals

_TAIL = 64


def queue_name(results: str, lane: int) -> str:
    """The log that is a lane's result queue.

    >>> queue_name("results", 1)
    'results.lane-1'
    """
    return f"{results}.lane-{lane}"


def cursor_name(results: str) -> str:
    return f"{results}.cursor"


def lanes_name(results: str) -> str:
    """The log that says how many lanes are wanted, and whether to balance them; its last entry counts."""
    return f"{results}.lanes"


def rules_name(results: str) -> str:
    """The log that says up to where tier 2, in a process of its own, has judged the results."""
    return f"{results}.rules"


def last_bodies(reader: LogReader, most: int = _TAIL) -> list[bytes]:
    """The last bodies of a log with one partition, oldest first.

    Offsets may have holes, also at the end: if too few are found, the search begins farther back.
    """
    first, end = reader.bounds(0)
    span = most
    while True:
        begin = max(first, end - span)
        bodies = [body for chunk in reader.read_bodies(0, begin, end) for body in chunk.bodies]
        if len(bodies) >= most or begin == first:
            return bodies[-most:] if most else []
        span *= 8


@dataclass(frozen=True, slots=True)
class LanesRequest:
    """The last change of lanes that was requested at run time; None: as the config says."""

    lanes: int | None = None
    balance: bool | None = None

    @classmethod
    def read(cls, reader: LogReader) -> LanesRequest:
        try:
            for body in last_bodies(reader, 1):
                return cls(**json.loads(body))
        except NoSuchChannel:
            pass
        return cls()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def requested_lanes(reader: LogReader, otherwise: int) -> int:
    """The number of lanes that was requested last."""
    lanes = LanesRequest.read(reader).lanes
    return otherwise if lanes is None else lanes


def cursor_body(read_bytes: dict[int, int]) -> bytes:
    return json.dumps({"taken": read_bytes}).encode()


@dataclass(frozen=True, slots=True)
class Level:
    """Fill of one result queue, and figures of the last batch that was written to it."""

    appended_bytes: int = 0
    queued_bytes: int = 0
    events: int = 0
    """input events of all entries ever written"""
    batch_events: int = 0
    batch_s: float | None = None
    cycle: tuple[int, float] | None = None
    """events and seconds of the batch before, from its planning to its end"""
    events_read_total: int = 0
    """events of the lane's ticks that its entries cover, in total"""
    batch: int = -1
    tick: int | None = None
    """the last complete tick; None: the batch is still being written"""
    last: bool = False
    totals: Totals = field(default_factory=Totals)


class QueueLevels:
    """The free-space sensor: reads the tails of the result queues and of the cursor."""

    def __init__(self, url: str, results: str) -> None:
        self._url, self._results = url, results
        self._readers: dict[str, LogReader] = {}

    def read(self, lanes: Sequence[int]) -> list[Level]:
        read_bytes: dict[str, int] = {}
        for body in self._last(cursor_name(self._results)):
            read_bytes = json.loads(body)["taken"]
        return [self._level(lane, read_bytes.get(str(lane), 0)) for lane in lanes]

    def _level(self, lane: int, read_bytes: int) -> Level:
        header: dict[str, Any] | None = None
        size = 0
        for body in self._last(queue_name(self._results, lane)):
            header, size = header_of(body), len(body)
        if header is None:
            return Level()
        appended = header["before"] + size
        return Level(
            appended_bytes=appended,
            queued_bytes=max(0, appended - read_bytes),
            events=header["totals"]["events_in"],
            batch_events=header["events"],
            batch_s=header["seconds"],
            cycle=tuple(header["cycle"]) if header["cycle"] else None,
            events_read_total=header["taken"],
            batch=header["batch"],
            tick=header.get("mark"),
            last=header.get("last", False),
            totals=Totals(**header["totals"]),
        )

    def _last(self, log: str) -> list[bytes]:
        if log not in self._readers:
            self._readers[log] = open_log_reader(self._url, log)
        try:
            return last_bodies(self._readers[log], 1)
        except NoSuchChannel:
            return []  # nobody has written there yet

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
