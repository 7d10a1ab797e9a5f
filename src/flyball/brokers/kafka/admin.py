"""Topics, offsets and groups of a Kafka cluster; every call blocks for a bounded time and runs on some thread."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.positions import Partition
from flyball.brokers.kafka.config import (
    KafkaSettings,
    exception_to_broker_error,
    retry_transient,
    to_broker_error,
)
from flyball.brokers.kafka.log_reader import KafkaLogReader
from flyball.brokers.port import ChannelInfo, LoginRefused, Unreachable, no_such_channel
from flyball.errors import InvalidValue

Answer = TypeVar("Answer")

_OFFSET_SPEC: Any = importlib.import_module("confluent_kafka.admin").OffsetSpec  # has no types
_REQUEST_S = 10.0
_CONNECT_STEP_S = 0.25
_SMALLEST_SEGMENT, _LARGEST_SEGMENT = 1 << 20, 1 << 30
# The group has members, so only they may commit for it.
_GROUP_IN_USE = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP, KafkaError.STALE_MEMBER_EPOCH}


class KafkaAdmin:
    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = AdminClient(settings.client())
        self._observer: tuple[str, Consumer] | None = None
        self._observer_lock = threading.Lock()

    def close(self) -> None:
        with self._observer_lock:
            if self._observer is not None:
                self._observer[1].close()
                self._observer = None

    def check_connection(self) -> None:
        """Raise Unreachable if no broker answers, LoginRefused if it refuses the login."""
        errors: list[KafkaError] = []
        probe = Producer(self._settings.client() | {"error_cb": errors.append})
        deadline = time.monotonic() + self._settings.connect_timeout_s
        while True:
            try:
                probe.list_topics(timeout=_CONNECT_STEP_S)
            except KafkaException as error:
                probe.poll(0)
                failures = [to_broker_error(each, self._settings) for each in errors]
                refused = [each for each in failures if isinstance(each, LoginRefused)]
                if refused:
                    raise refused[0] from None
                if any(each.code() == KafkaError._ALL_BROKERS_DOWN for each in errors):
                    raise next(each for each in failures if isinstance(each, Unreachable)) from None
                if time.monotonic() > deadline:
                    raise exception_to_broker_error(error, self._settings) from None
                continue
            return

    def is_reachable(self, timeout_s: float) -> bool:
        """Whether a broker answers right now."""
        try:
            self._client.list_topics(timeout=timeout_s)
        except KafkaException:
            return False
        return True

    def topics(self) -> dict[str, int]:
        """All topics of users, and how many partitions each has."""
        try:
            topics = self._client.list_topics(timeout=_REQUEST_S).topics
        except KafkaException as error:
            raise exception_to_broker_error(error, self._settings) from None
        return {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}

    def partitions(self, topic: str) -> int:
        count = self.topics().get(topic, 0)
        if not count:
            raise no_such_channel("log", topic, f"on {self._settings.url}")
        return count

    def bounds(self, topic: str) -> list[tuple[int, int]]:
        """(first offset still there, offset the next record will get) of each partition."""
        partitions = [(topic, number) for number in range(self.partitions(topic))]
        firsts, ends = (
            self._offsets(partitions, _OFFSET_SPEC.earliest()),
            self._offsets(partitions, _OFFSET_SPEC.latest()),
        )
        return [(firsts[partition], ends[partition]) for partition in partitions]

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset that the next record of each partition will get."""
        return self._offsets(partitions, _OFFSET_SPEC.latest())

    def _offsets(self, partitions: Sequence[Partition], spec: Any) -> dict[Partition, int]:
        if not partitions:
            return {}
        request = {TopicPartition(topic, number): spec for topic, number in partitions}

        def ask() -> dict[Partition, int]:
            answers = self._client.list_offsets(request, request_timeout=_REQUEST_S)
            return {(each.topic, each.partition): future.result().offset for each, future in answers.items()}

        return retry_transient(ask, self._settings, partitions[0][0])

    def declare(self, spec: ChannelSpec) -> None:
        topic, partitions = spec.name, spec.partitions
        try:
            brokers = len(self._client.list_topics(timeout=_REQUEST_S).brokers)
        except KafkaException as error:
            raise exception_to_broker_error(error, self._settings, topic) from None
        replication = self._settings.replication or min(3, brokers)
        config = {"max.message.bytes": str(self._settings.max_record_bytes)}
        if spec.durable:
            # A lone broker confirms after it flushed; with replicas, several machines have the record instead.
            config |= {"flush.messages": "1"} if replication == 1 else {"min.insync.replicas": "2"}
        if spec.max_bytes is not None:
            share = max(spec.max_bytes // partitions, 1)
            # Only whole segments are dropped, so a log needs several to stay near its limit.
            segment = min(max(share // 4, _SMALLEST_SEGMENT), _LARGEST_SEGMENT)
            config |= {"retention.bytes": str(share), "segment.bytes": str(segment)}
        if spec.retention_s is not None:
            retention_ms = max(int(spec.retention_s * 1000), 1)
            config |= {"retention.ms": str(retention_ms), "segment.ms": str(max(retention_ms // 4, 1000))}
        wanted = NewTopic(topic, partitions, replication, config=config)
        try:
            self._client.create_topics([wanted], request_timeout=_REQUEST_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise exception_to_broker_error(error, self._settings, topic) from None
            existing = self._await_topic(topic)
            if existing < partitions:
                raise InvalidValue(
                    f"log {topic!r} has {existing} partitions, not {partitions}: delete it first, or choose "
                    "another name"
                ) from None
        else:
            self._await_topic(topic)

    def _await_topic(self, topic: str) -> int:
        """Wait until the brokers know a new topic, a moment after the controller has created it."""
        deadline = time.monotonic() + _REQUEST_S
        while True:
            count = self.topics().get(topic, 0)
            if count or time.monotonic() > deadline:
                return count
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        try:
            self._client.delete_topics([topic], request_timeout=_REQUEST_S)[topic].result()
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                raise exception_to_broker_error(error, self._settings, topic) from None
        deadline = time.monotonic() + _REQUEST_S
        while topic in self.topics() and time.monotonic() < deadline:
            time.sleep(0.02)

    def purge(self, topic: str) -> int:
        bounds = self.bounds(topic)
        ends = [TopicPartition(topic, number, end) for number, (_, end) in enumerate(bounds)]
        answers = self._client.delete_records(ends, request_timeout=_REQUEST_S)
        retry_transient(lambda: [future.result() for future in answers.values()], self._settings, topic)
        return sum(end - first for first, end in bounds)

    def depth(self, topic: str, group: str | None) -> int:
        bounds = self.bounds(topic)
        done = self.committed(group, [(topic, number) for number in range(len(bounds))]) if group else {}
        return sum(
            max(end - max(done.get((topic, number), first), first), 0)
            for number, (first, end) in enumerate(bounds)
        )

    def oldest_age_s(self, topic: str) -> float | None:
        stored_s: list[float] = []
        with KafkaLogReader(self._settings.url, topic) as reader:
            for number in range(reader.partitions()):
                first, end = reader.bounds(number)
                for records in reader.read_records(number, first, end):
                    stored_s.append(records[0].timestamp()[1] / 1000)
                    break
        return max(time.time() - min(stored_s), 0.0) if stored_s else None

    def channels(self) -> list[ChannelInfo]:
        topics = self.topics()
        partitions = [(topic, number) for topic, count in topics.items() for number in range(count)]
        firsts, ends = (
            self._offsets(partitions, _OFFSET_SPEC.earliest()),
            self._offsets(partitions, _OFFSET_SPEC.latest()),
        )
        depths = dict.fromkeys(topics, 0)
        for partition in partitions:
            depths[partition[0]] += ends[partition] - firsts[partition]
        return [ChannelInfo(name, "log", topics[name], depths[name]) for name in sorted(topics)]

    def begin_group_at_end(self, group: str, topics: Iterable[str]) -> dict[Partition, int]:
        """Set where a new group begins: at the present end, before its first member has joined.

        Otherwise a message sent between subscribing and the first fetch would be missed. Offsets can be set only
        for a group without members; otherwise returns those at which this member begins by itself.
        """
        counts = self.topics()
        partitions = [(topic, number) for topic in topics for number in range(counts.get(topic, 0))]
        begun = self.committed(group, partitions)
        ends = self._offsets(
            [partition for partition in partitions if partition not in begun], _OFFSET_SPEC.latest()
        )
        if not ends:
            return {}
        wanted = [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
        request = [ConsumerGroupTopicPartitions(group, wanted)]

        def ask() -> Any:
            try:
                return self._client.alter_consumer_group_offsets(request, request_timeout=_REQUEST_S)[
                    group
                ].result()
            except KafkaException as error:
                if error.args[0].code() in _GROUP_IN_USE:
                    return None
                raise

        answer = retry_transient(ask, self._settings, group)
        if answer is None:
            return ends
        refused = [each for each in answer.topic_partitions if each.error is not None]
        return {(each.topic, each.partition): ends[each.topic, each.partition] for each in refused}

    def committed(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Offsets that the group has committed, where it has."""
        if not partitions:
            return {}
        request = [TopicPartition(*partition) for partition in partitions]

        def ask() -> list[TopicPartition]:
            try:
                with self._observer_lock:
                    offsets = self._observer_of(group).committed(request, timeout=_REQUEST_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                raise
            for each in offsets:
                if each.error is not None:
                    raise KafkaException(each.error)
            return offsets

        committed = retry_transient(ask, self._settings, group)
        return {(each.topic, each.partition): each.offset for each in committed if each.offset >= 0}

    def _observer_of(self, group: str) -> Consumer:
        """A client that asks for what a group has committed, and never joins it.

        The admin client can ask as well, and ends the process (SIGSEGV, librdkafka 2.x) when a broker
        answers that it is not the group's coordinator any more, as after a restart: it has no group to refresh.
        """
        if self._observer is None or self._observer[0] != group:
            if self._observer is not None:
                self._observer[1].close()
            self._observer = (
                group,
                Consumer(self._settings.client() | {"group.id": group, "enable.auto.commit": False}),
            )
        return self._observer[1]
