"""Sending to Kafka: one idempotent producer on a thread of its own, shared by all senders of a connection.

The thread hands the messages of batches to the client, collects the delivery reports and wakes the event
loop once a batch is complete: two hand-overs a batch, whatever its size.

**Watchdog.** The client itself would wait for minutes for a broker that froze. Here: when messages are out and
nothing moves for half of `confirm_timeout_s` (no report comes, and the client writes no bytes, as it does for long
over a slow link), another connection asks the broker for its metadata; if that is not answered within the other
half, everything outstanding fails as unconfirmed and the producer is replaced. A broker that answers is only slow
(it may be writing to disk) and gets up to `_PATIENCE_S`.

**Named producers** have a thread of their own (`exact`). There the outstanding messages of a broker that does not
answer are reported as unconfirmed too, but stay in the client, which goes on trying with the numbers by which the
broker recognises them: what a frozen broker finds in its sockets when it wakes up must not be stored beside a
repeat. So what becomes of them is known in the end, and only then `SequencedSender` sends them again.

**Refused records.** A broker refuses a whole batch of the client for one record that it cannot store. The others
are sent again; where the broker does not say which record it was, one by one.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from flyball.brokers.core.checks import check_batch
from flyball.brokers.kafka.codec import SEQUENCE, to_headers
from flyball.brokers.kafka.config import LARGE, KafkaSettings, to_broker_error, too_large, unconfirmed
from flyball.brokers.port import BrokerError, Message, SendResult, UnfitMessage, Unreachable

_PATIENCE_S = 30.0
_POLL_S = 0.001
_LATE_POLL_S = 0.02
_IDLE_S = 0.5
_SEND_BUFFER_BYTES = 1 << 20
"""Of the kernel, which takes twice as much. While it drains the client writes nothing: 16 s at 1 Mbit/s."""
_SMALL_TRAFFIC_BYTES = 4096
"""The client's own requests between two statistics are smaller."""
# Reports after which it is unknown whether the record was stored: it may have reached the broker.
_UNKNOWN_OUTCOME = {
    KafkaError._MSG_TIMED_OUT,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._PURGE_QUEUE,
    KafkaError._FATAL,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._DESTROY,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
# Reports about a batch of the client, for which one record of it may be the reason.
_REFUSED = {KafkaError.INVALID_RECORD, *LARGE}


class Batch:
    """Messages in flight and their outcomes. `stamps` number those of a named producer.

    `future` is the caller's; `settled` is done when the client has reported every message.
    """

    def __init__(
        self, settings: KafkaSettings, channel: str, messages: Sequence[Message], stamps: Sequence[str] | None
    ) -> None:
        self.channel = channel
        self.messages = messages
        self.stamps = stamps
        self.next = 0
        self.again: list[int] = []
        """Messages that the client has to get once more."""
        self.refused: list[tuple[int, KafkaError]] = []
        self.alone: int | None = None
        """The message that is in the client without any other."""
        self.results: list[SendResult | None] = [None] * len(messages)
        self.unanswered = len(messages)
        self.reports = 0
        self.late = False
        """The caller got its results while some outcomes were unknown; the client still has these messages."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[SendResult]] = self._loop.create_future()
        self.settled: asyncio.Future[None] = self._loop.create_future()

    def on_report(self, index: int, error: KafkaError | None, record: Any) -> None:
        """The client's delivery report; runs on the producer's thread."""
        self.reports += 1
        if error is None:
            id = self.messages[index].id
            self.results[index] = SendResult(id, None, False, record.partition(), record.offset())
            self.unanswered -= 1
        elif error.code() in _UNKNOWN_OUTCOME:
            self.refuse(index, unconfirmed(self._settings, self._settings.confirm_timeout_s))
        elif error.code() == KafkaError._INVALID_DIFFERENT_RECORD:
            self.again.append(index)
        elif error.code() in _REFUSED and self.alone != index:
            self.refused.append((index, error))
        else:
            self.refuse(index, self.to_error(index, error))

    def to_error(self, index: int, error: KafkaError) -> BrokerError:
        if error.code() == KafkaError.INVALID_RECORD:
            return UnfitMessage(
                f"{self._settings.url} does not store message {self.messages[index].id!r} in {self.channel!r} "
                f"({error.str()}): a compacted topic takes only messages with a key"
            )
        return to_broker_error(error, self._settings, self.channel)

    def refuse(self, index: int, error: BrokerError) -> None:
        self.results[index] = SendResult(self.messages[index].id, error)
        self.unanswered -= 1

    def report_late(self) -> None:
        """Hand the caller what is known. Messages that the client does not have yet are not sent any more."""
        unknown = unconfirmed(self._settings, self._settings.confirm_timeout_s)
        for index in range(self.next, len(self.messages)):
            if self.results[index] is None:
                self.refuse(index, unknown)
        self.next, self.late = len(self.messages), True
        known = [
            result or SendResult(message.id, unknown)
            for result, message in zip(self.results, self.messages, strict=True)
        ]
        self._call(partial(_resolve, self.future, known))

    def finish(self) -> None:
        """Hand the results to the caller."""
        self._call(self._finish)

    def _finish(self) -> None:
        _resolve(self.future, [result for result in self.results if result is not None])
        _resolve(self.settled, None)

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed: no coroutine waits any more
            self._loop.call_soon_threadsafe(function)


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():  # else its caller was cancelled
        future.set_result(result)


class ProducerThread:
    """The producer and the only thread that uses it."""

    def __init__(
        self, settings: KafkaSettings, is_reachable: Callable[[float], bool], *, exact: bool = False
    ) -> None:
        """`is_reachable(timeout_s)`: the broker answers on another connection."""
        self._settings = settings
        self._is_reachable = is_reachable
        self._exact = exact
        self._waiting: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._open: list[Batch] = []
        self._refused: deque[tuple[Batch, int]] = deque()
        self._alone: Batch | None = None
        self._names_refused = False
        """The broker says which record of a batch it refuses."""
        self._closing = False
        self._fatal = False
        self._sent_bytes = 0
        self._progress_s = self._next_check_s = time.monotonic()
        self._producer = self._new_producer()
        self.blocked = False
        """The client's queue is full."""
        self._thread = threading.Thread(target=self._run, name="flyball-kafka-producer", daemon=True)
        self._thread.start()

    async def send(self, channel: str, messages: Sequence[Message]) -> list[SendResult]:
        return await self.submit(channel, messages).future

    def submit(self, channel: str, messages: Sequence[Message], stamps: Sequence[str] | None = None) -> Batch:
        """Begin to send."""
        if self._closing:
            raise Unreachable(f"the connection to {self._settings.url} was closed: connect again")
        messages, unfit = check_batch(messages)
        batch = Batch(self._settings, channel, messages, stamps)
        for index, error in unfit.items():
            batch.refuse(index, error)
        self._waiting.put(batch)
        return batch

    async def close(self) -> None:
        self._closing = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, _PATIENCE_S)

    def _new_producer(self) -> Producer:
        self._fatal, self._sent_bytes = False, 0
        return Producer(
            self._settings.client()
            | {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.max.bytes": self._settings.max_record_bytes,
                "queue.buffering.max.kbytes": 1 << 17,
                "partitioner": "murmur2_random",  # the same key goes where Java programs send it
                # The client's own time limits would end a large request over a slow link again and again: the
                # watchdog decides instead.
                "message.timeout.ms": 0,
                "request.timeout.ms": int(_PATIENCE_S * 1000),
                "socket.timeout.ms": 300_000,
                "socket.send.buffer.bytes": _SEND_BUFFER_BYTES,
                "statistics.interval.ms": max(20, int(self._settings.confirm_timeout_s * 250)),
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
            }
        )

    def _on_error(self, error: KafkaError) -> None:
        self._fatal = self._fatal or bool(error.fatal())

    def _on_statistics(self, text: str) -> None:
        """Called by `poll`: bytes that were written since the last time are progress."""
        sent_bytes = sum(broker["txbytes"] for broker in json.loads(text)["brokers"].values())
        if sent_bytes - self._sent_bytes > _SMALL_TRAFFIC_BYTES:
            self._progress_s = time.monotonic()
        self._sent_bytes = sent_bytes

    def _run(self) -> None:
        while True:
            if not self._open:
                batch = self._wait_for_batch()
                if batch is None:
                    break
                self._open.append(batch)
                self._progress_s = time.monotonic()
            more = self._accept_waiting()
            only_late = self._exact and all(batch.late for batch in self._open)
            if only_late and not more:
                break
            produced, reports = self._produce(), self._count_reports()
            self._producer.poll(_LATE_POLL_S if only_late else _POLL_S)
            if produced or self._count_reports() > reports:
                self._progress_s = time.monotonic()
                self.blocked = False
            self._sort_refused()
            self._finish_complete()
            if self._fatal:
                self._replace_producer()
            elif self._open and time.monotonic() - self._progress_s > self._settings.confirm_timeout_s / 2:
                self._check_progress()
        self._producer.purge()
        self._producer.poll(0)
        self._finish_complete()

    def _count_reports(self) -> int:
        return sum(batch.reports for batch in self._open)

    def _wait_for_batch(self) -> Batch | None:
        """Wait for a batch; None: there will be no more. The client has to be polled now and then."""
        while True:
            try:
                return self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                self._producer.poll(0)
                if self._fatal:
                    self._replace_producer()

    def _accept_waiting(self) -> bool:
        """Accept all batches that are waiting, without blocking; False: there will be no more."""
        while True:
            try:
                batch = self._waiting.get_nowait()
            except queue.Empty:
                return True
            if batch is None:
                self._waiting.put(None)  # for `_wait_for_batch`, once the open batches are done
                return False
            self._open.append(batch)

    def _produce(self) -> int:
        """Give the client as many messages as it accepts; returns their number."""
        if self._refused or self._alone is not None:
            return self._produce_alone()
        count = 0
        for batch in self._open:
            if batch.again:
                accepted = self._produce_some(batch, batch.again)
                del batch.again[:accepted]
                count += accepted
            if batch.next < len(batch.messages):
                accepted = self._produce_some(batch, range(batch.next, len(batch.messages)))
                batch.next += accepted
                count += accepted
            if batch.again or batch.next < len(batch.messages):
                self.blocked = True
                break
        return count

    def _produce_some(self, batch: Batch, indices: Sequence[int]) -> int:
        """Give the client messages of a batch in order; returns how many it accepted or refused."""
        produce, channel, messages, on_report = (
            self._producer.produce,
            batch.channel,
            batch.messages,
            batch.on_report,
        )
        limit = self._settings.max_body_bytes
        for count, index in enumerate(indices):
            if batch.results[index] is not None:
                continue  # unfit
            message = messages[index]
            body = message.body
            try:
                if len(body) > limit:
                    batch.refuse(index, too_large(self._settings, channel, len(body)))
                    continue
                headers = to_headers(message)
                if batch.stamps is not None:
                    headers.append((SEQUENCE, batch.stamps[index]))
                produce(channel, body, message.key, on_delivery=partial(on_report, index), headers=headers)
            except BufferError:
                return count
            except KafkaException as error:
                batch.refuse(index, to_broker_error(error.args[0], self._settings, channel))
            except (TypeError, ValueError, KeyError) as error:
                batch.refuse(index, UnfitMessage(f"message {message.id!r} cannot become a Kafka record: {error}"))
        return len(indices)

    def _sort_refused(self) -> None:
        """Decide about what the broker refused: final, if it names the record; else it is sent alone."""
        for batch in self._open:
            if batch.again:
                self._names_refused = True
            if batch.refused:
                refused, batch.refused = batch.refused, []
                for index, error in refused:
                    if self._names_refused and error.code() == KafkaError.INVALID_RECORD:
                        batch.refuse(index, batch.to_error(index, error))
                    else:
                        self._refused.append((batch, index))

    def _produce_alone(self) -> int:
        """Send a message that was refused together with others once more, and nothing else meanwhile."""
        if len(self._producer):
            return 0
        if self._alone is not None:
            self._alone.alone = None
            self._alone = None
        if not self._refused:
            return 0
        self._alone, index = self._refused.popleft()
        self._alone.alone = index
        return self._produce_some(self._alone, [index])

    def _finish_complete(self) -> None:
        complete = [batch for batch in self._open if not batch.unanswered]
        if complete:
            self._open = [batch for batch in self._open if batch.unanswered]
            for batch in complete:
                batch.finish()

    def _check_progress(self) -> None:
        """Nothing has moved for a while: find out whether the broker is there."""
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        half_s = self._settings.confirm_timeout_s / 2
        alive = self._is_reachable(half_s)
        self._next_check_s = now_s + half_s
        if alive and now_s - self._progress_s < _PATIENCE_S:
            return
        if alive or not self._exact:
            self._replace_producer()
            return
        for batch in self._open:
            if not batch.late:
                batch.report_late()
        self.blocked = False
        self._progress_s = now_s  # patience is for a broker that answers
        self._finish_complete()

    def _replace_producer(self) -> None:
        """Begin anew with another client; what the old one had not reported is unconfirmed."""
        self._producer.purge()
        self._producer.poll(0)
        self._refused.clear()
        self._alone = None
        for batch in self._open:
            batch.again, batch.refused, batch.next = [], [], len(batch.messages)
            for index, result in enumerate(batch.results):
                if result is None:
                    batch.refuse(index, unconfirmed(self._settings, self._settings.confirm_timeout_s))
        self.blocked = False
        self._finish_complete()
        self._producer = self._new_producer()
