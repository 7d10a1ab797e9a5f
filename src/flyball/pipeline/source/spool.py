"""Plain queues as input: their messages are moved to a log first, for Spark has to be able to read them again.

A message is acknowledged to its queue only when the log holds it for good, so kill -9 loses nothing. What was in
the log already and not acknowledged yet comes again, with the same id, and is dropped: the ids of the log's last
messages are read at the start. Messages without an id cannot be recognised; they may then stand in the log twice.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flyball.brokers import Broker, connect
from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.log_reader import LOG_READERS, open_log_reader
from flyball.brokers.sqlite.schema import path_of
from flyball.brokers.url import BrokerUrl
from flyball.errors import FlyballError, InvalidValue
from flyball.file_lock import lock_file
from flyball.message import fit_message

_WINDOW = 2_000
_RECENT = 10 * _WINDOW  # ids that are read at the start; no more than a window can have been unacknowledged
_LOOK_S = 0.2
_READY_S = 60.0
_QUEUES = ("amqp", "amqps")


class SpoolFailed(FlyballError, RuntimeError):
    """A queue cannot be moved to its log any more; what was not moved is still in the queue."""


class Spooler:
    """Moves the messages of a queue to a log, for ever."""

    def __init__(self, queue_url: str, queue: str, log_url: str, log: str) -> None:
        self._queue_url, self._queue, self._log_url, self._log = queue_url, queue, log_url, log
        self._known = FinishedIds(_RECENT, math.inf)
        self.moved = 0
        self.dropped = 0
        self.saw_empty = False
        """whether the queue had nothing to deliver once, when all that came before was in the log"""

    async def declare(self) -> None:
        """Make sure that the log exists."""
        async with await connect(self._log_url) as logs:
            await logs.declare(self._log, "log")

    async def depth(self) -> int:
        """Messages that wait in the queue."""
        async with await connect(self._queue_url) as queues:
            return await queues.depth(self._queue)

    async def run(self, stop: asyncio.Event) -> None:
        await self.declare()
        async with await connect(self._log_url) as logs:
            await self._remember(logs)
            sender = await logs.sender(self._log)
            async with await connect(self._queue_url) as queues:
                receiver = await queues.receiver(self._queue, window=_WINDOW)
                while not stop.is_set():
                    deliveries = await receiver.receive(_WINDOW, timeout_s=_LOOK_S)
                    if not deliveries:
                        self.saw_empty = True
                        continue
                    # Other programs write what brokers of another kind cannot carry; the body is what counts here.
                    messages = [fit_message(delivery.message) for delivery in deliveries]
                    there = self._known.repeats([message.id for message in messages], now_s=0.0)
                    fresh = {message.id: message for message in messages if message.id not in there}
                    if fresh:
                        results = await sender.send_batch(list(fresh.values()))
                        failed = next((result.error for result in results if result.error is not None), None)
                        if failed is not None:
                            raise SpoolFailed(
                                f"the log {self._log!r} did not store a message: {failed}"
                            ) from failed
                    self._known.add(fresh, now_s=0.0)
                    await receiver.ack(*deliveries)
                    self.moved += len(fresh)
                    self.dropped += len(deliveries) - len(fresh)

    async def _remember(self, logs: Broker) -> None:
        partitions = await asyncio.to_thread(self._partitions)
        of_each = max(_WINDOW, _RECENT // partitions)
        self._known = FinishedIds(of_each * partitions, math.inf)
        for partition in range(partitions):
            first, end = await logs.bounds(self._log, partition)
            async for records in logs.read(self._log, partition, max(first, end - of_each), end):
                self._known.add([record.message.id for record in records], now_s=0.0)

    def _partitions(self) -> int:
        with open_log_reader(self._log_url, self._log) as reader:
            return reader.partitions()


class Spool:
    """For the source: the queue that an amqp:// URL names, and the log it is spooled to.

    The process that plans batches moves messages, in a thread; readers elsewhere only read the log. If several
    plan on one file, one of them moves.
    """

    def __init__(self, queue_url: str, queue: str, log_url: str, log: str) -> None:
        self._arguments = (queue_url, queue, log_url, log)
        self._spooler = Spooler(*self._arguments)
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._moved_elsewhere = False
        self._expected_end = 0
        self._failure: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_arguments": self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["_arguments"])  # type: ignore[misc]  # the same spool, not started

    def keep_moving(self) -> None:
        """Start moving if it has not started, and raise if it has failed."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="flyball-spool", daemon=True)
            self._thread.start()
            if not self._ready.wait(_READY_S):
                raise SpoolFailed(
                    f"the log {self._arguments[3]!r} for the queue was not ready after {_READY_S:g} s"
                )
        if self._failure is not None:
            text = f"the queue {self._arguments[1]!r} is not moved any more: {self._failure}"
            raise SpoolFailed(text) from self._failure

    def move_what_waits(self) -> None:
        """Return when the log holds what waited in the queue when this process began to move messages.

        While another process moves them, messages that it has received and not stored yet do not count.
        """
        self.keep_moving()
        while not (self._spooler.saw_empty or self._log_end() >= self._expected_end):
            if self._moved_elsewhere and asyncio.run(self._spooler.depth()) == 0:
                return
            time.sleep(_LOOK_S)
            self.keep_moving()

    def _log_end(self) -> int:
        with open_log_reader(*self._arguments[2:]) as reader:
            return sum(reader.bounds(partition)[1] for partition in range(reader.partitions()))

    def check_here(self) -> None:
        """Raise if this process could not read the log because it is on another host."""
        url = BrokerUrl.parse(self._arguments[2])
        if url.scheme == "sqlite" and not path_of(url).exists():
            raise InvalidValue(
                f"the spool {url} is a file of the host that reads the queue, which this executor on another host "
                "cannot see: spool to kafka:// or rabbitmq-stream:// where the master has several hosts"
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._spooler.declare())
            # Repeats make the log end earlier than that; then the queue runs empty.
            self._expected_end = self._log_end() + asyncio.run(self._spooler.depth())
            self._ready.set()
            with _alone(self._arguments[2], self._wait_for_other):
                self._moved_elsewhere = False
                asyncio.run(self._spooler.run(asyncio.Event()))
        except Exception as error:  # noqa: BLE001 (keep_moving tells it)
            self._failure = error
            self._ready.set()

    def _wait_for_other(self) -> None:
        self._moved_elsewhere = True


@contextmanager
def _alone(log_url: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Wait until no other process spools to the same file. The lock goes with the process, however it ends."""
    url = BrokerUrl.parse(log_url)
    if url.scheme != "sqlite":
        yield
        return
    path = path_of(url)
    lock = path.with_name(f"{path.name}.spool-lock")
    try:
        file = lock_file(lock, wait=False)
    except BlockingIOError:
        on_wait()
        file = lock_file(lock)
    with file:
        yield


def spooled(options: Mapping[str, str]) -> tuple[dict[str, str], Spool | None]:
    """Options of the source with the log instead of the queue, and what fills it.

    >>> options = {"url": "amqp://localhost/?queue=orders", "spool": "sqlite:////data/spool.db"}
    >>> sorted(spooled(options)[0].items())
    [('log', 'orders'), ('url', 'sqlite:////data/spool.db')]
    """
    given = dict(options)
    spool_url = given.pop("spool", "")
    url = given.get("url", "")
    if url.partition("://")[0].lower() not in _QUEUES:
        if spool_url:
            raise InvalidValue("option spool of the source flyball is for queues, that is for an amqp:// url")
        return given, None
    parsed = BrokerUrl.parse(url)
    queue = parsed.options.get("queue", "")
    if not queue:
        raise InvalidValue(f"{parsed} names no queue; add it, such as amqp://localhost/?queue=events")
    if not spool_url:
        raise InvalidValue(
            f"a queue such as {queue!r} can be read once only, so it is spooled to a log: name one by the option "
            "'spool', such as sqlite:////var/lib/flyball/spool.db"
        )
    spool = BrokerUrl.parse(spool_url)
    if spool.scheme not in LOG_READERS:
        raise InvalidValue(f"option spool = '{spool}' has no logs; use one of {', '.join(LOG_READERS)}")
    log = given.get("log") or queue
    return {**given, "url": spool_url, "log": log}, Spool(_without_queue(url), queue, spool_url, log)


def _without_queue(url: str) -> str:
    """The broker's own URL: the queue's name is not one of its options."""
    head, _, query = url.partition("?")
    others = [part for part in query.split("&") if part and not part.startswith("queue=")]
    return head + (f"?{'&'.join(others)}" if others else "")
