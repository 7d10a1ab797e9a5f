"""Storing messages in a SQLite broker: into batches, past what a producer already sent, within limits.

All inside the caller's transaction, so a batch, the backlogs of its outlets, the producer's sequence and the
offsets change together or not at all.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flyball.brokers.core.checks import partition_of
from flyball.brokers.port import Message
from flyball.brokers.sqlite.admin import Channel, Topology
from flyball.brokers.sqlite.codec import encode

_MOST_BYTES = 1 << 20  # of bodies in one batch: a small claim may have to read all of it
_MOST_MESSAGES = 4096
_MOST_DROPPED = 64  # batches retention removes at once, so that no append waits long


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one call that become one batch; `positions` are their positions in the call."""

    partition: int
    positions: Sequence[int]
    messages: Sequence[Message]
    data: bytes

    def after(self, position: int) -> Chunk | None:
        """The rest, when everything up to a position was stored by an earlier call."""
        if self.positions[0] > position:
            return self
        keep = [at for at in range(len(self.positions)) if self.positions[at] > position]
        if not keep:
            return None
        messages = [self.messages[at] for at in keep]
        return Chunk(self.partition, [self.positions[at] for at in keep], messages, encode(messages))


def chunks(channel: Channel, messages: Sequence[tuple[int, Message]], keyless: int) -> list[Chunk]:
    """Split (position, message) pairs by partition and size, keeping the order of each partition.

    A limited channel gets smaller batches, because it is filled and emptied batch by batch.
    """
    most_bytes = _MOST_BYTES if channel.max_bytes is None else min(_MOST_BYTES, channel.max_bytes // 8)
    by_partition: dict[int, list[tuple[int, Message]]] = {}
    if channel.partitions == 1:
        by_partition[0] = list(messages)
    else:
        for pair in messages:
            by_partition.setdefault(partition_of(pair[1].key, channel.partitions, keyless), []).append(pair)
    result = []
    for partition, pairs in by_partition.items():
        begin, size = 0, 0
        for at, (_, message) in enumerate(pairs):
            if at > begin and (size + len(message.body) > most_bytes or at - begin == _MOST_MESSAGES):
                result.append(_chunk(partition, pairs[begin:at]))
                begin, size = at, 0
            size += len(message.body)
        if begin < len(pairs):
            result.append(_chunk(partition, pairs[begin:]))
    return sorted(result, key=lambda chunk: chunk.positions[0])


def _chunk(partition: int, pairs: Sequence[tuple[int, Message]]) -> Chunk:
    messages = [message for _, message in pairs]
    return Chunk(partition, [position for position, _ in pairs], messages, encode(messages))


@dataclass(slots=True)
class AppendResult:
    """The result of one transaction: chunks with their first offset, chunks that did not fit, outlets to wake."""

    last_stored: int = -1
    stored: list[tuple[Chunk, int]] = field(default_factory=list)
    rest: list[Chunk] = field(default_factory=list)
    outlets: Sequence[int] = ()


class ChannelReplaced(Exception):
    """The channel was deleted and declared again: `channel` is the one that exists."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.channel = channel


class SequenceGap(Exception):
    """Messages before these were not stored: stored later, they would be taken for repeats."""


def append(
    db: sqlite3.Connection,
    topology: Topology,
    channel: Channel,
    new_chunks: Sequence[Chunk],
    producer: str | None,
    sequence: int | None,
    after: int | None,
) -> AppendResult:
    """Store the chunks that are new and fit. `last_stored`: the last position an earlier call stored, or −1.

    `after`: the sequence that calls before this one end with; the log must have it.
    """
    current = topology.channel(db, channel.name)
    if current != channel:
        raise ChannelReplaced(current)
    done = AppendResult(outlets=topology.outlets(channel))
    todo = list(new_chunks)
    if producer is not None and sequence is not None and channel.kind == "log":
        last = last_sequence(db, channel, producer)
        if after is not None and (last is None or last < after):
            raise SequenceGap
        if last is not None and last >= sequence:
            done.last_stored = last - sequence
            todo = [rest for chunk in todo if (rest := chunk.after(done.last_stored)) is not None]
    for at, chunk in enumerate(todo):
        if channel.kind == "queue" and is_full(db, channel):
            done.rest = todo[at:]
            break
        done.stored.append((chunk, _store(db, channel, chunk, done.outlets)))
    if producer is not None and sequence is not None and done.stored:
        newest = sequence + max(chunk.positions[-1] for chunk, _ in done.stored)
        db.execute(
            "INSERT INTO broker_producers VALUES (?, ?, ?) "
            "ON CONFLICT (channel, name) DO UPDATE SET last_sequence = excluded.last_sequence",
            (channel.id, producer, newest),
        )
    if channel.kind == "log":
        trim(db, topology, channel)
    return done


def _store(db: sqlite3.Connection, channel: Channel, chunk: Chunk, outlets: Sequence[int]) -> int:
    count, size = len(chunk.messages), len(chunk.data)
    (first,) = db.execute(
        "UPDATE broker_partitions SET next_offset = next_offset + ?, bytes = bytes + ? "
        "WHERE channel = ? AND partition = ? RETURNING next_offset - ?1",
        (count, size, channel.id, chunk.partition),
    ).fetchone()
    owed = count * len(outlets) if channel.kind == "queue" else 0
    batch = db.execute(
        "INSERT INTO broker_batches (channel, partition, first_offset, count, bytes, stored_s, owed) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (channel.id, chunk.partition, first, count, size, time.time(), owed),
    ).lastrowid
    db.execute("INSERT INTO broker_payloads VALUES (?, ?)", (batch, chunk.data))
    for outlet in outlets:
        db.execute("INSERT INTO broker_waiting VALUES (?, ?, 0, ?, 0)", (outlet, batch, count))
        db.execute(
            "INSERT INTO broker_backlogs VALUES (?1, ?2, ?3, ?3) ON CONFLICT (outlet, channel) "
            "DO UPDATE SET waiting = waiting + ?3, unsettled = unsettled + ?3",
            (outlet, channel.id, count),
        )
    return int(first)


def is_full(db: sqlite3.Connection, channel: Channel) -> bool:
    if channel.max_bytes is None:
        return False
    (stored,) = db.execute("SELECT bytes FROM broker_partitions WHERE channel = ?", (channel.id,)).fetchone()
    return bool(stored >= channel.max_bytes)


def last_sequence(db: sqlite3.Connection, channel: Channel, producer: str) -> int | None:
    row = db.execute(
        "SELECT last_sequence FROM broker_producers WHERE channel = ? AND name = ?", (channel.id, producer)
    ).fetchone()
    return None if row is None else int(row[0])


def trim(db: sqlite3.Connection, topology: Topology, channel: Channel, *, everything: bool = False) -> int:
    """Drop the records of a log that are beyond its retention (or everything); returns their number."""
    if channel.max_bytes is None and channel.retention_s is None and not everything:
        return 0
    oldest_s = -1.0 if channel.retention_s is None else time.time() - channel.retention_s
    most_bytes = None if channel.max_bytes is None else channel.max_bytes // channel.partitions
    dropped = 0
    for partition in range(channel.partitions):
        (size,) = db.execute(
            "SELECT bytes FROM broker_partitions WHERE channel = ? AND partition = ?", (channel.id, partition)
        ).fetchone()
        for batch, count, bytes_, stored_s in db.execute(
            "SELECT id, count, bytes, stored_s FROM broker_batches WHERE channel = ? AND partition = ? "
            "ORDER BY first_offset LIMIT ?",
            (channel.id, partition, -1 if everything else _MOST_DROPPED),
        ).fetchall():
            if not everything and stored_s >= oldest_s and (most_bytes is None or size <= most_bytes):
                break
            _drop(db, topology, channel, partition, batch, count, bytes_)
            size -= bytes_
            dropped += count
    return dropped


def _drop(
    db: sqlite3.Connection, topology: Topology, channel: Channel, partition: int, batch: int, count: int, size: int
) -> None:
    for outlet in topology.outlets(channel):
        waiting = _delete(db, "broker_waiting WHERE outlet = ? AND batch = ?", outlet, batch)
        # Claims of the batch are deleted too: a receiver may finish its messages, and settles nothing with that.
        receivers = "(SELECT id FROM broker_receivers WHERE outlet = ?)"
        claimed = _delete(db, f"broker_claimed WHERE receiver IN {receivers} AND batch = ?", outlet, batch)
        db.execute(
            "UPDATE broker_backlogs SET waiting = waiting - ?, unsettled = unsettled - ? "
            "WHERE outlet = ? AND channel = ?",
            (waiting, waiting + claimed, outlet, channel.id),
        )
    remove_batch(db, batch)
    db.execute(
        "UPDATE broker_partitions SET first_offset = first_offset + ?, bytes = bytes - ? "
        "WHERE channel = ? AND partition = ?",
        (count, size, channel.id, partition),
    )


def _delete(db: sqlite3.Connection, where: str, outlet: int, batch: int) -> int:
    return sum(
        size for (size,) in db.execute(f"DELETE FROM {where} RETURNING high - low", (outlet, batch)).fetchall()
    )


def remove_batch(db: sqlite3.Connection, batch: int) -> None:
    db.execute("DELETE FROM broker_batches WHERE id = ?", (batch,))
    db.execute("DELETE FROM broker_payloads WHERE batch = ?", (batch,))
