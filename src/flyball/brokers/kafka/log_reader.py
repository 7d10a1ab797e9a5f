"""Reads Kafka topics by offset, synchronously and in bulk: for Spark's workers, and below `Broker.read`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flyball.brokers.kafka.config import (
    KafkaSettings,
    exception_to_broker_error,
    retry_transient,
    to_broker_error,
)
from flyball.brokers.log_reader import LogChunk
from flyball.brokers.port import Unreachable
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue

_AT_ONCE = 10_000
_POLL_S = 0.5
_RECORD_TIMEOUT_S = 15.0
# Clients that a forked process got from its parent. Destroying one would wait for threads that are not there, so
# they are kept until the process ends.
_INHERITED: list[Consumer] = []


class KafkaLogReader:
    """A `LogReader` of one topic. It joins no group and commits nothing.

    The client is made on first use and again in a forked process, since its threads do not survive a fork.
    """

    def __init__(self, url: BrokerUrl, log: str) -> None:
        self._settings = KafkaSettings.of(url)
        self._log = log
        self._consumer: Consumer | None = None
        self._owner_pid = -1

    def __getstate__(self) -> tuple[KafkaSettings, str]:
        return self._settings, self._log

    def __setstate__(self, state: tuple[KafkaSettings, str]) -> None:
        self._settings, self._log = state
        self._consumer, self._owner_pid = None, -1

    def partitions(self) -> int:
        try:
            topic = self._client().list_topics(self._log, self._settings.connect_timeout_s).topics[self._log]
        except KafkaException as error:
            raise exception_to_broker_error(error, self._settings, self._log) from None
        if topic.error is not None:
            raise to_broker_error(topic.error, self._settings, self._log)
        return len(topic.partitions)

    def bounds(self, partition: int) -> tuple[int, int]:
        count = self.partitions()
        if not 0 <= partition < count:
            raise InvalidValue(f"log {self._log!r} has partitions 0 to {count - 1}, not {partition}")
        first, end = retry_transient(
            lambda: self._client().get_watermark_offsets(
                TopicPartition(self._log, partition), self._settings.connect_timeout_s
            ),
            self._settings,
            self._log,
        )
        return first, end

    def read_bodies(self, partition: int, start: int, stop: int) -> Iterator[LogChunk]:
        for records in self.read_records(partition, start, stop):
            offsets = [record.offset() for record in records]
            bodies = [record.value() or b"" for record in records]
            contiguous = offsets[-1] - offsets[0] + 1 == len(offsets)
            yield LogChunk(offsets[0], bodies, None if contiguous else offsets)

    def read_records(self, partition: int, start: int, stop: int) -> Iterator[list[Any]]:
        """Like `read_bodies`, with the client's own records; no chunk is empty."""
        first, end = self.bounds(partition)
        start, stop = max(start, first), min(stop, end)
        if start >= stop:
            return
        consumer = self._client()
        consumer.assign([TopicPartition(self._log, partition, start)])
        try:
            last_record_s = time.monotonic()
            while time.monotonic() - last_record_s < _RECORD_TIMEOUT_S:
                # The client waits until it has as many, so ask for no more than there are.
                records: list[Any] = consumer.consume(min(_AT_ONCE, stop - start), _POLL_S)
                if not records:
                    continue
                last_record_s = time.monotonic()
                good = [record for record in records if record.error() is None]
                ended = self._is_end(records) if len(good) < len(records) else False
                if good and good[-1].offset() >= stop - 1:
                    # Compaction may have removed the records before `stop`: one past it shows the end as well.
                    good, ended = [record for record in good if record.offset() < stop], True
                if good:
                    start = good[-1].offset() + 1
                    yield good
                if ended:
                    return
            raise Unreachable(
                f"{self._settings.url} sent nothing of log {self._log!r} for {_RECORD_TIMEOUT_S:.0f} s"
            )
        finally:
            consumer.unassign()

    def _is_end(self, records: list[Any]) -> bool:
        """Whether the end of the partition was reached; raises an error from which the client does not recover."""
        ended = False
        for error in (record.error() for record in records):
            if error is None or error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise to_broker_error(error, self._settings, self._log)
            ended = True
        return ended

    def _client(self) -> Consumer:
        if self._consumer is None or self._owner_pid != os.getpid():
            if self._consumer is not None:
                _INHERITED.append(self._consumer)
            self._owner_pid = os.getpid()
            self._consumer = Consumer(
                self._settings.client()
                | {
                    "group.id": f"flyball-reader-{self._owner_pid}",  # the client requires one; it is never joined
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 50,
                    "fetch.queue.backoff.ms": 5,
                }
            )
        return self._consumer

    def close(self) -> None:
        if self._consumer is not None and self._owner_pid == os.getpid():
            self._consumer.close()
        elif self._consumer is not None:
            _INHERITED.append(self._consumer)
        self._consumer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
