"""Sending to Kafka: one idempotent producer on a thread of its own, shared by all senders of a connection.

The thread hands the messages of batches to the client, collects the delivery reports and wakes the event
loop once a batch is complete: two hand-overs a batch, whatever its size.

**Watchdog.** The client itself would wait half a minute for a broker that froze. Here: when messages are out
and no report came for half of `confirm_timeout_s`, another connection asks the broker for its metadata; if that
is not answered within the other half, everything outstanding fails as unconfirmed and the producer is
replaced. A broker that answers is only slow (it may be writing to disk) and gets up to `_PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from flyball.brokers.kafka.codec import SEQUENCE, to_headers
from flyball.brokers.kafka.config import KafkaSettings, to_broker_error, too_large, unconfirmed
from flyball.brokers.port import BrokerError, Message, SendResult, Unreachable
from flyball.errors import InvalidValue

_PATIENCE_S = 30.0
_POLL_S = 0.001
_IDLE_S = 0.5
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


class _Batch:
    """Messages in flight and their outcomes. `stamps` number those of a named producer."""

    def __init__(
        self, settings: KafkaSettings, channel: str, messages: Sequence[Message], stamps: Sequence[str] | None
    ) -> None:
        self.channel = channel
        self.messages = messages
        self.stamps = stamps
        self.next = 0
        self.results: list[SendResult | None] = [None] * len(messages)
        self.unanswered = len(messages)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[list[SendResult]] = self._loop.create_future()

    def on_report(self, index: int, error: KafkaError | None, record: Any) -> None:
        """The client's delivery report; runs on the producer's thread."""
        id = self.messages[index].id
        if error is None:
            self.results[index] = SendResult(id, None, False, record.partition(), record.offset())
        elif error.code() in _UNKNOWN_OUTCOME:
            self.results[index] = SendResult(id, unconfirmed(self._settings, self._settings.confirm_timeout_s))
        else:
            self.results[index] = SendResult(id, to_broker_error(error, self._settings, self.channel))
        self.unanswered -= 1

    def refuse(self, index: int, error: BrokerError) -> None:
        self.results[index] = SendResult(self.messages[index].id, error)
        self.unanswered -= 1

    def finish(self) -> None:
        """Hand the results to the caller."""
        self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result([result for result in self.results if result is not None])


class ProducerThread:
    """The producer and the only thread that uses it."""

    def __init__(self, settings: KafkaSettings, is_reachable: Callable[[float], bool]) -> None:
        """`is_reachable(timeout_s)`: the broker answers on another connection."""
        self._settings = settings
        self._is_reachable = is_reachable
        self._waiting: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._open: list[_Batch] = []
        self._closing = False
        self._producer = self._new_producer()
        self.blocked = False
        """The client's queue is full."""
        self._thread = threading.Thread(target=self._run, name="flyball-kafka-producer", daemon=True)
        self._thread.start()

    async def send(
        self, channel: str, messages: Sequence[Message], stamps: Sequence[str] | None = None
    ) -> list[SendResult]:
        if self._closing:
            raise Unreachable(f"the connection to {self._settings.url} was closed: connect again")
        batch = _Batch(self._settings, channel, messages, stamps)
        self._waiting.put(batch)
        return await batch.future

    async def close(self) -> None:
        self._closing = True
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, _PATIENCE_S)

    def _new_producer(self) -> Producer:
        return Producer(
            self._settings.client()
            | {
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.max.bytes": self._settings.max_record_bytes,
                "queue.buffering.max.kbytes": 1 << 17,
                "partitioner": "murmur2_random",  # the same key goes where Java programs send it
                "message.timeout.ms": int(_PATIENCE_S * 1000),
                "request.timeout.ms": int(_PATIENCE_S * 1000) - 1000,
            }
        )

    def _run(self) -> None:
        progress_s = time.monotonic()
        while True:
            if not self._open:
                batch = self._wait_for_batch()
                if batch is None:
                    break
                self._open.append(batch)
                progress_s = time.monotonic()
            self._accept_waiting()
            if self._produce() + self._producer.poll(_POLL_S):
                progress_s = time.monotonic()
                self.blocked = False
            self._finish_complete()
            if self._open and time.monotonic() - progress_s > self._settings.confirm_timeout_s / 2:
                self._check_progress(progress_s)
        self._producer.purge()
        self._producer.poll(0)

    def _wait_for_batch(self) -> _Batch | None:
        """Wait for a batch; None: there will be no more. The client has to be polled now and then."""
        while True:
            try:
                return self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                self._producer.poll(0)

    def _accept_waiting(self) -> None:
        """Accept all batches that are waiting, without blocking."""
        while True:
            try:
                batch = self._waiting.get_nowait()
            except queue.Empty:
                return
            if batch is None:
                self._waiting.put(None)  # for `_wait_for_batch`, once the open batches are done
                return
            self._open.append(batch)

    def _produce(self) -> int:
        """Give the client as many messages as it accepts; returns their number."""
        count = 0
        for batch in self._open:
            count += self._produce_batch(batch)
            if batch.next < len(batch.messages):
                self.blocked = True
                break
        return count

    def _produce_batch(self, batch: _Batch) -> int:
        produce, channel, messages, on_report = (
            self._producer.produce,
            batch.channel,
            batch.messages,
            batch.on_report,
        )
        first, limit = batch.next, self._settings.max_body_bytes
        for index in range(first, len(messages)):
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
                batch.next = index
                return index - first
            except KafkaException as error:
                batch.refuse(index, to_broker_error(error.args[0], self._settings, channel))
            except (TypeError, ValueError, KeyError) as error:
                batch.refuse(index, _unfit(message, error))
        batch.next = len(messages)
        return len(messages) - first

    def _finish_complete(self) -> None:
        complete = [batch for batch in self._open if not batch.unanswered]
        if complete:
            self._open = [batch for batch in self._open if batch.unanswered]
            for batch in complete:
                batch.finish()

    def _check_progress(self, progress_s: float) -> None:
        alive = self._is_reachable(self._settings.confirm_timeout_s / 2)
        if alive and time.monotonic() - progress_s < _PATIENCE_S:
            return
        self._producer.purge()
        self._producer.poll(0)
        for batch in self._open:  # what the client had not accepted yet
            for index, result in enumerate(batch.results):
                if result is None:
                    batch.refuse(index, unconfirmed(self._settings, self._settings.confirm_timeout_s))
        self.blocked = False
        self._finish_complete()
        self._producer = self._new_producer()


class UnfitMessage(BrokerError, InvalidValue):
    """A message that cannot become a Kafka record."""


def _unfit(message: Message, error: Exception) -> UnfitMessage:
    return UnfitMessage(
        f"message {message.id!r} cannot be sent: body and key have to be bytes, headers plain values ({error})"
    )
