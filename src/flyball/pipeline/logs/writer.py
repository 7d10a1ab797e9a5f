"""Appends what a batch brought to a log of the broker, exactly once.

Spark repeats a batch that it did not see finished, with the same number and the same rows. So row i of batch b
is sent under the sequence number b·2³² + i: a log that drops repeats of a (producer, sequence) takes each row
once, whether the first attempt got nothing, a part or everything through.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from flyball.brokers import Broker, Message, Sender, connect
from flyball.brokers.port import BrokerError, is_permanent, may_pass
from flyball.errors import FlyballError
from flyball.loop_thread import LoopThread
from flyball.pipeline.policy.appending import ROWS_PER_BATCH

T = TypeVar("T")


class SinkFailed(FlyballError, RuntimeError):
    """The broker did not take what a batch brought; Spark repeats the batch."""


def is_outage(error: BaseException) -> bool:
    """Whether a broker is away, of whom the same request may succeed later.

    >>> from flyball.brokers.port import NoSuchChannel, Unreachable
    >>> is_outage(Unreachable("no answer")), is_outage(NoSuchChannel("no log")), is_outage(OSError("disk full"))
    (True, False, False)
    """
    cause = error.__cause__ if isinstance(error, SinkFailed) else error
    return isinstance(cause, BrokerError) and may_pass(cause) and not is_permanent(cause)


class LogSinks:
    """Senders into logs, for code that runs outside an event loop, such as Spark's foreachBatch."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop: LoopThread | None = None
        self._broker: Broker | None = None
        self._senders: dict[tuple[str, str | None], Sender] = {}

    def open(self) -> None:
        self._loop = LoopThread("flyball-sink")
        self._broker = self._run(connect(self._url))

    def declare(self, log: str, max_bytes: int | None = None) -> None:
        self._run(self._connected.declare(log, "log", max_bytes=max_bytes))

    def add(self, log: str, producer: str | None, max_bytes: int | None = None) -> None:
        """Make sure the log exists and prepare to append to it under that producer's name.

        Without a producer only `append_unsequenced` can append; it drops no repeats.
        """
        if (log, producer) in self._senders:
            return
        self.declare(log, max_bytes)
        self._senders[log, producer] = self._run(self._connected.sender(log, producer=producer))

    def append(self, log: str, producer: str, batch: int, bodies: Sequence[bytes]) -> None:
        """Append the rows of a batch; repeating the call changes nothing."""
        if not bodies:
            return
        first = batch * ROWS_PER_BATCH
        messages = [Message(body, id=f"{producer}-{first + row}") for row, body in enumerate(bodies)]
        results = self._run(self._senders[log, producer].send_batch(messages, sequence=first))
        failed = next((result.error for result in results if result.error is not None), None)
        if failed is not None:
            raise SinkFailed(f"log {log!r} did not store all rows of batch {batch}: {failed}") from failed

    def append_unsequenced(self, log: str, body: bytes) -> None:
        """Append one body without a sequence number; a repeat does no harm."""
        (result,) = self._run(self._senders[log, None].send_batch([Message(body)]))
        if result.error is not None:
            raise SinkFailed(f"log {log!r} did not store an entry: {result.error}") from result.error

    @property
    def _connected(self) -> Broker:
        assert self._broker is not None, "open() comes first"
        return self._broker

    def close(self) -> None:
        if self._broker is not None:
            self._run(self._broker.close())
        if self._loop is not None:
            self._loop.stop()
        self._broker = self._loop = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "open() comes first"
        return self._loop.run(work)
