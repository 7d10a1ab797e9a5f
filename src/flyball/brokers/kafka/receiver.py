"""Receiving from Kafka as a member of a consumer group.

The client fetches ahead on its own threads; `consume(n, timeout=0)` returns what is there and never waits, so it
is called on the event loop itself, for exactly as many messages as the window has free slots: nothing is parked
in between, and rebalances, which the client announces inside that call, need no lock.

**Commits.** What is committed is the prefix that `log_receiver` knows, so it costs nothing per message. One commit
is under way at a time; what is acknowledged meanwhile goes with the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flyball.brokers.core.log_receiver import LogReceiver
from flyball.brokers.core.positions import Partition
from flyball.brokers.kafka.codec import to_deliveries
from flyball.brokers.kafka.config import KafkaSettings, to_broker_error
from flyball.brokers.port import BrokerError, Delivery
from flyball.futures import wait_at_most

_MOST_AT_ONCE = 500
_QUICK_POLL_S, _SLOW_POLL_S = 0.0005, 0.016
_IN_FLOW_S = 0.05
_KEEP_ALIVE_S = 0.25
_STALLED_S = 1.0
CLOSE_S = 10.0
_SOCKET_TIMEOUT_MS = 180_000
"""A fetch that takes longer is begun again from the start: 16 MiB at 1 Mbit/s take 134 s."""

# Errors after which the client goes on by itself (it reconnects, joins again, refreshes its metadata).
_TRANSIENT = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._PARTITION_EOF,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}


class KafkaReceiver(LogReceiver):
    """One member of a group.

    `find_topics` names the topics that match now; it is called every second, so that a topic that is created
    later joins. `starts`: where the group begins in partitions for which it has committed nothing.
    """

    _poll_s: float = _QUICK_POLL_S

    def __init__(
        self,
        settings: KafkaSettings,
        group: str,
        window: int,
        topics: Sequence[str],
        find_topics: Callable[[], Sequence[str]] | None,
        starts: dict[Partition, int],
    ) -> None:
        super().__init__(window, settings.dedup_ids, one_channel=find_topics is None and len(topics) == 1)
        self._settings = settings
        self._group = group
        self._topics = sorted(topics)
        self._find_topics = find_topics
        self._starts = starts
        self._committing = False
        self._paused = False
        self._last_fetch_s = time.monotonic()
        self._failure: BrokerError | None = None
        self._loop = asyncio.get_running_loop()
        self._last_message_s = 0.0
        self._generation = 0
        self._classic = settings.classic_groups
        self._consumer = self._join(classic=self._classic)
        self._poll_task = self._loop.create_task(self._keep_polling())

    def _join(self, *, classic: bool) -> Consumer:
        self._generation += 1
        generation = self._generation

        def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            if generation == self._generation:  # else it is a client that was replaced, on another thread
                self._on_commit(error, partitions)

        protocol: dict[str, Any] = {"group.protocol": "consumer"}
        if classic:
            protocol = {
                "group.protocol": "classic",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": int(self._settings.session_timeout_s * 1000),
                "heartbeat.interval.ms": max(int(self._settings.session_timeout_s * 200), 100),
            }
        consumer = Consumer(
            self._settings.client()
            | protocol
            | {
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # Only where nothing is committed and `starts` says nothing: topics that appeared later.
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "fetch.queue.backoff.ms": 5,  # the default of a second stops the flow whenever that queue is full
                "socket.timeout.ms": _SOCKET_TIMEOUT_MS,
                "max.poll.interval.ms": 86_400_000,  # `_keep_polling` polls, also while the window is closed
                "on_commit": on_commit,
            }
        )
        if self._topics:
            consumer.subscribe(
                self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        return consumer

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        self._last_fetch_s = time.monotonic()
        if self._failure is not None:
            # Once: the cause may pass, and then the client goes on, or another one joins.
            failure, self._failure = self._failure, None
            raise failure
        if self._redeliveries:
            return self._fetch_redeliveries(limit)
        self._set_paused(False)
        deliveries = self._poll(min(limit, _MOST_AT_ONCE))
        if deliveries:
            self._last_message_s = self._last_fetch_s
        # A busy log has a short gap between two fetches: only an idle one is polled less often.
        is_idle = self._last_fetch_s - self._last_message_s > _IN_FLOW_S
        self._poll_s = min(2 * self._poll_s, _SLOW_POLL_S) if is_idle else _QUICK_POLL_S
        return deliveries

    def _poll(self, limit: int) -> list[Delivery]:
        try:
            records: list[Any] = self._consumer.consume(limit, 0)
        except KafkaException as failure:
            self._handle_error(failure.args[0])
            return []
        if not records:
            return []
        errors: list[KafkaError] = []
        deliveries = to_deliveries(records, self._next_tag, self._delivered_ends, errors)
        self._next_tag += len(deliveries)
        for error in errors:
            self._handle_error(error)
        fresh = self._without_repeats(deliveries, self._last_fetch_s)
        if len(fresh) < len(deliveries):
            self._loop.call_soon(self._commit)  # once the fresh ones count as in flight
        return fresh

    def _handle_error(self, error: KafkaError) -> None:
        """The client recovers from most errors; `receive` raises the others, once each."""
        if (
            error.code() in (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)
            and not self._delivered_ends
        ):
            # An older broker: join by the classic protocol. The first consumer owns nothing yet.
            self._rejoin(classic=True)
            return
        if error.code() not in _TRANSIENT:
            self._failure = to_broker_error(error, self._settings, ", ".join(self._topics))
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._rejoin(classic=self._classic)

    def _rejoin(self, *, classic: bool) -> None:
        """Go on with another client: what the old one had in flight is delivered again."""
        old, self._classic = self._consumer, classic
        self._revoke(list(self._delivered_ends))
        self._committing = self._paused = False
        self._consumer = self._join(classic=classic)
        self._loop.run_in_executor(None, old.close)

    def _schedule_store(self) -> None:
        self._commit()

    def _commit(self, revoked: Iterable[Partition] | None = None) -> None:
        if self._committing and revoked is None:
            return
        only = None if revoked is None else set(revoked)
        offsets = [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._positions().items()
            if (only is None or (topic, partition) in only)
            and offset > self._stored_positions.get((topic, partition), -1)
        ]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException:
            return  # not a member right now: what is not committed is delivered again
        self._committing = True
        for each in offsets:
            self._stored_positions[each.topic, each.partition] = each.offset

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._committing = False
        for each in partitions:
            if error is not None or each.error is not None:
                self._stored_positions.pop((each.topic, each.partition), None)
        if error is None and not self._closed:
            self._commit()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._revoke([(each.topic, each.partition)])
        if any((each.topic, each.partition) in self._starts for each in partitions):
            consumer.incremental_assign(
                [
                    TopicPartition(
                        each.topic, each.partition, self._starts.pop((each.topic, each.partition), each.offset)
                    )
                    for each in partitions
                ]
            )

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        revoked = [(each.topic, each.partition) for each in partitions]
        self._commit(revoked)
        self._revoke(revoked)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if consumer is not self._consumer:
            return
        self._revoke([(each.topic, each.partition) for each in partitions])

    async def _keep_polling(self) -> None:
        """Poll the client also while no messages are received, or its group would wait for it.

        Its partitions are paused then, so that the poll brings no message. Pausing throws away what was
        fetched ahead, so it is only done after a second without `receive`.
        """
        last_look_s = time.monotonic()
        while not self._closed:
            await asyncio.sleep(_KEEP_ALIVE_S)
            now_s = time.monotonic()
            if now_s - self._last_fetch_s > _STALLED_S and not self._closed:
                self._set_paused(True)
                self._redeliveries.extend(self._poll(1))
            self._commit()  # what could not be committed when it was acknowledged
            if self._find_topics is not None and now_s - last_look_s > 1.0:
                last_look_s = now_s
                await self._look_for_topics(self._find_topics)

    def _set_paused(self, paused: bool) -> None:
        if paused == self._paused:
            return
        owned = self._consumer.assignment()
        (self._consumer.pause if paused else self._consumer.resume)(owned)
        self._paused = paused

    async def _look_for_topics(self, find_topics: Callable[[], Sequence[str]]) -> None:
        try:
            topics = sorted(await asyncio.to_thread(find_topics))
        except BrokerError:
            return  # unreachable for the moment: the next call finds out
        if topics != self._topics and topics and not self._closed:
            self._topics = topics
            self._consumer.subscribe(
                topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )

    async def _release(self, unsettled: Sequence[Delivery]) -> None:
        self._poll_task.cancel()
        positions = self._positions(unsettled)
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
        self._delivered_ends.clear()
        # A broker that does not answer does not keep us: the thread ends later.
        with suppress(TimeoutError):
            await wait_at_most(asyncio.to_thread(self._leave, offsets), CLOSE_S)

    def _leave(self, offsets: list[TopicPartition]) -> None:
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            pass  # not a member any more: delivered again
        self._consumer.close()
