"""Follows a log and writes new messages to a target, from the target's own position on.

Everything a sink writes is already in a log, exactly once and durably. So a target needs no more than to keep
its position *together with* what it wrote: after kill -9 it continues from there.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import BrokerError
from flyball.errors import FlyballError
from flyball.pipeline.logs.writer import SinkFailed, is_outage
from flyball.pipeline.run.polling import POLL_S
from flyball.pipeline.run.step_thread import StepThread

_MOST_BYTES = 16_000_000


class SinkStopped(FlyballError, RuntimeError):
    """A sink failed; what it wrote is kept, and it continues there when the pipeline is run again."""


class Interrupted(FlyballError):
    """A target was stopped while it waited; what it has not recorded as written is written again."""


class Target(Protocol):
    """Where a sink writes to. `linger_s`: how long it may wait for more, to write fewer and larger pieces."""

    linger_s: float

    def open(self, stopping: threading.Event) -> Mapping[int, int]:
        """Get ready; the offset that comes next in each partition of the log (absent: from its beginning).

        A target that has to wait does so for `stopping`, and raises `Interrupted` when it comes.
        """

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Write these messages of the log and, with them, that the one after `offsets[-1]` comes next."""

    def close(self) -> None: ...


class Follower:
    """One sink, at work in a thread of its own: a slow one delays neither Spark nor the other sinks."""

    def __init__(
        self,
        name: str,
        url: str,
        log: str,
        target: Target,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._url, self._log, self._target, self._clock = name, url, log, target, clock
        self._reader: LogReader | None = None
        self._next: dict[int, int] = {}
        self._since_s: dict[int, float] = {}
        self._flush = threading.Event()
        self._thread = StepThread(f"sink {name}", self._guarded, POLL_S, _may_pass)

    def start(self) -> None:
        self._next = dict(self._target.open(self._thread.stopping))
        self._reader = open_log_reader(self._url, self._log)
        self._thread.start()

    def check(self) -> None:
        """Raise what stopped the sink, if something did."""
        self._thread.check()

    def drain(self) -> None:
        """Wait until everything that is in the log now has been written."""
        with open_log_reader(self._url, self._log) as reader:
            goals = {partition: reader.bounds(partition)[1] for partition in range(reader.partitions())}
        self._flush.set()
        self._thread.wait_until(
            lambda: all(self._next.get(partition, 0) >= goal for partition, goal in goals.items())
        )
        self._flush.clear()

    def stop(self) -> None:
        self._thread.stop()
        if self._reader is not None:
            self._reader.close()
        self._target.close()

    def _guarded(self) -> bool:
        try:
            return self.step()
        except Interrupted:
            return False
        except Exception as error:
            if _may_pass(error):
                raise
            raise SinkStopped(f"the sink {self._name} cannot continue: {error}") from error

    def step(self) -> bool:
        """Write what is there; False: there was nothing to write."""
        assert self._reader is not None
        wrote = False
        for partition in range(self._reader.partitions()):
            first, end = self._reader.bounds(partition)
            at = self._next.setdefault(partition, first)
            if first > at:
                raise SinkStopped(f"the log {self._log} begins at {first}, but {at} was still to be written")
            if end > at and self._is_time(partition):
                wrote = self._write(partition, at, end) or wrote
        return wrote

    def _is_time(self, partition: int) -> bool:
        since = self._since_s.setdefault(partition, self._clock())
        return self._flush.is_set() or self._clock() - since >= self._target.linger_s

    def _write(self, partition: int, at: int, end: int) -> bool:
        assert self._reader is not None
        offsets: list[int] = []
        bodies: list[bytes] = []
        size = 0
        for chunk in self._reader.read_bodies(partition, at, end):
            offsets += chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
            bodies += chunk.bodies
            size += sum(map(len, chunk.bodies))
            if size >= _MOST_BYTES:
                break
        if offsets:
            self._target.write(partition, offsets, bodies)
            self._next[partition] = offsets[-1] + 1
        else:  # only holes: a log may have some
            self._next[partition] = end
        del self._since_s[partition]
        return True


def _may_pass(error: Exception) -> bool:
    """Whether writing may succeed later: a full disk, a locked file, a folder or a broker that is away."""
    if isinstance(error, BrokerError | SinkFailed):
        return is_outage(error)
    return isinstance(error, OSError | sqlite3.OperationalError)
