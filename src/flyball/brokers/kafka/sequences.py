"""Which messages of a named producer a topic has already, so that repeats of them are dropped.

Kafka's own idempotence ends with the client, and its transactions would hide records from other programs until
they are committed. So a named producer's records carry its name and their number in a header, and a new sender
of the name reads the end of the topic: as far back as numbers below the first that is to be sent. That is one
reading for each sender, and one after an unknown outcome. It covers the whole topic if that has nothing of the
producer.

A name belongs to one sender at a time, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flyball.brokers.kafka.codec import SEQUENCE, headers_of
from flyball.brokers.kafka.config import KafkaSettings
from flyball.brokers.kafka.log_reader import KafkaLogReader

_FIRST_SPAN, _WIDER = 16, 8


def stamp(producer: str, sequence: int) -> str:
    """The value of the header.

    >>> stamp("lane 1", 7), sequence_of([("message-id", b"x"), ("producer-sequence", b"lane 1 7")], b"lane 1")
    ('lane 1 7', 7)
    """
    return f"{producer} {sequence}"


def sequence_of(headers: list[tuple[str, bytes | None]] | None, producer: bytes) -> int | None:
    """A record's number, if it is one of the producer's."""
    for name, value in headers or ():
        if name == SEQUENCE and value is not None:
            named, _, number = value.rpartition(b" ")
            return int(number) if named == producer and number.isdigit() and len(number) < 20 else None
    return None


class StoredSequences:
    """Reads the sequence numbers that a topic has of one producer."""

    def __init__(self, settings: KafkaSettings, topic: str, producer: str) -> None:
        self._settings, self._topic, self._producer = settings, topic, producer.encode()

    def last(self) -> int | None:
        """The highest number."""
        with KafkaLogReader(self._settings.url, self._topic) as reader:
            last_numbers = [
                max(self._read_backwards(reader, number), default=None) for number in range(reader.partitions())
            ]
        return max((number for number in last_numbers if number is not None), default=None)

    def since(self, sequence: int) -> set[int]:
        """The numbers from that one on."""
        with KafkaLogReader(self._settings.url, self._topic) as reader:
            return {
                number
                for partition in range(reader.partitions())
                for number in self._read_backwards(reader, partition, sequence)
                if number >= sequence
            }

    def _read_backwards(self, reader: KafkaLogReader, partition: int, below: int | None = None) -> Iterator[int]:
        """Numbers from the end backwards, span by span, until one is less than `below`, or until there is any.

        A client sends to a partition in order: before such a number there are only smaller ones.
        """
        first, end = reader.bounds(partition)
        span = _FIRST_SPAN
        while end > first:
            begin = max(first, end - span)
            numbers = [
                number
                for records in reader.read_records(partition, begin, end)
                for record in records
                if (number := self._sequence_of(record)) is not None
            ]
            yield from numbers
            if numbers and (below is None or min(numbers) < below):
                return
            end, span = begin, span * _WIDER

    def _sequence_of(self, record: Any) -> int | None:
        try:
            headers = headers_of(record)
        except Exception:  # noqa: BLE001  the client fails on a header's name that is not UTF-8, in its own way
            return None  # none of ours has such a name
        return sequence_of(headers, self._producer)
