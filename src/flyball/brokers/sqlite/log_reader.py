"""Reading a log of a SQLite broker by offset, synchronously: no event loop, any process, nothing is removed.

No read transaction is kept open between chunks, so a slow reader never stops the file's log from being emptied.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Self

from flyball.brokers.core.names import check_name
from flyball.brokers.log_reader import LogChunk
from flyball.brokers.port import Record, Unsupported, no_such_channel
from flyball.brokers.sqlite.codec import Batch
from flyball.brokers.sqlite.schema import OPTIONS, open_file, path_of, to_broker_error
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

_BATCHES_AT_ONCE = 8  # a compromise: at most 8 MiB in memory, few queries where batches are small


class SqliteLogReader:
    """Reads one log; opens the file on first use, again after a fork or unpickling."""

    def __init__(self, url: BrokerUrl, log: str) -> None:
        url.check_options(*OPTIONS)
        self._url, self._log = url, check_name(log)
        self._path = path_of(url)
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._channel: tuple[int, int] | None = None  # (id, partitions)

    def partitions(self) -> int:
        return self._describe()[1]

    def bounds(self, partition: int) -> tuple[int, int]:
        channel = self._check_partition(partition)
        first, end = self._query(
            "SELECT first_offset, next_offset FROM broker_partitions WHERE channel = ? AND partition = ?",
            channel,
            partition,
        )[0]
        return first, end

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        for first, low, high, batch, _ in self._batches(partition, start, stop):
            yield LogChunk(first + low, batch.bodies(low, high))

    def read_records(self, partition: int, start: int, stop: int) -> Iterator[list[Record]]:
        """Whole records instead of bodies, a list a batch."""
        for first, low, high, batch, stored_s in self._batches(partition, start, stop):
            messages, unreadable = batch.decode(low, high)
            offsets = range(first + low, first + high)
            yield list(map(Record, repeat(partition), offsets, messages, repeat(stored_s), repeat(unreadable)))

    def _batches(self, partition: int, start: int, stop: int) -> Iterator[tuple[int, int, int, Batch, float]]:
        """(first offset, range of the batch that is wanted, batch, time it was stored), in order."""
        channel = self._check_partition(partition)
        stop = min(stop, self.bounds(partition)[1])
        (before,) = self._query(
            "SELECT max(first_offset) FROM broker_batches "
            "WHERE channel = ? AND partition = ? AND first_offset <= ?",
            channel,
            partition,
            start,
        )[0]
        at = start if before is None else before
        while at < stop:
            rows = self._query(
                "SELECT first_offset, count, stored_s, data "
                "FROM broker_batches JOIN broker_payloads ON batch = id "
                "WHERE channel = ? AND partition = ? AND first_offset >= ? AND first_offset < ? "
                "ORDER BY first_offset LIMIT ?",
                channel,
                partition,
                at,
                stop,
                _BATCHES_AT_ONCE,
            )
            if not rows:
                return
            for first, count, stored_s, data in rows:
                batch = Batch(data, count)
                low, high = max(start - first, 0), min(stop - first, batch.count)
                if low < high:
                    yield first, low, high, batch, stored_s
                at = first + batch.count

    def _check_partition(self, partition: int) -> int:
        channel, partitions = self._describe()
        if not 0 <= partition < partitions:
            raise InvalidValue(f"{self._log!r} has partitions 0 to {partitions - 1}, not {partition}")
        return channel

    def _describe(self) -> tuple[int, int]:
        # Queried every time: the log may have been deleted and declared again, with another number.
        rows = self._query("SELECT id, partitions, kind FROM broker_channels WHERE name = ?", self._log)
        if not rows:
            raise no_such_channel("log", self._log, f"in {self._path}")
        if rows[0][2] != "log":
            raise Unsupported(f"{self._log!r} is a queue: only a log can be read by offset")
        return rows[0][0], rows[0][1]

    def _query(self, sql: str, *values: object) -> list[Any]:
        if self._process != os.getpid():
            # A connection must not be used, not even closed, in a process forked from the one that opened it.
            self._connection = open_file(self._path, create=False, busy_timeout_s=self._busy_timeout_s())
            self._process = os.getpid()
        assert self._connection is not None
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise to_broker_error(error, self._path) from error

    def _busy_timeout_s(self) -> float:
        return self._url.number("busy_timeout_s", 10.0)

    def close(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection, self._process = None, 0

    def __getstate__(self) -> dict[str, object]:
        return {"url": self._url, "log": self._log}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["log"])  # type: ignore[misc]  # a new reader of the same log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
