"""Bulk, synchronous reading of a log by offset, for programs without an event loop.

Spark calls a source's `read()` in forked worker processes where no asyncio loop runs and where a record object
per message would cost more than the message. So a log reader hands out plain lists of bodies, opens its
connection on first use (it can be pickled or forked before that) and removes nothing from the log.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue


class LogChunk(NamedTuple):
    """Some bodies in offset order. `offsets` is None where they are contiguous from `first_offset`."""

    first_offset: int
    bodies: Sequence[bytes]
    offsets: Sequence[int] | None = None


class LogReader(Protocol):
    """Reads one log, partition by partition, as often as wanted.

    Errors are those of the port: `Unreachable`, `LoginRefused`, `NoSuchChannel`.
    """

    def partitions(self) -> int:
        """How many partitions the log has; they are numbered from 0."""

    def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset still there, offset the next record will get)."""

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        """The bodies with start <= offset < stop that still exist, in order, chunk by chunk; then it ends.

        A `stop` past the end is cut to the end the log has when the iteration begins, so it never waits for
        messages to come.
        """

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *reason: object) -> None: ...


# scheme → (module of this package, class): each is called with (BrokerUrl, log name)
LOG_READERS: dict[str, tuple[str, str]] = {
    "sqlite": ("sqlite.log_reader", "SqliteLogReader"),
    "kafka": ("kafka.log_reader", "KafkaLogReader"),
    "rabbitmq-stream": ("rabbitmq_stream.log_reader", "StreamLogReader"),
}


def open_log_reader(url: str, log: str) -> LogReader:
    """A reader of the log of that name; it connects on first use.

    >>> open_log_reader("memory://", "events")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: memory:// has no logs another process can read: use sqlite:///…, kafka:// or ...
    """
    parsed = BrokerUrl.parse(url)
    if parsed.scheme not in LOG_READERS:
        raise InvalidValue(
            f"{parsed} has no logs another process can read: use sqlite:///…, kafka:// or rabbitmq-stream://"
        )
    module, name = LOG_READERS[parsed.scheme]
    reader: LogReader = getattr(importlib.import_module(f"flyball.brokers.{module}"), name)(parsed, log)
    return reader
