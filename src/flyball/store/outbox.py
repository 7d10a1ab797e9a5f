"""Messages that were accepted and that no broker has confirmed yet.

`append` returns when the messages are safe on disk; a relay takes them, sends them, and confirms them, which
removes them. What was taken and not confirmed is known in memory only: a relay that dies leaves everything it had
not confirmed to the next one, which sends it again with the same id.

The outbox is *transactional* for an application that keeps its own tables in the same file: `enqueue` writes
with the application's connection, so the message exists if and only if the application's transaction commits.

Order: within an urgency class messages leave in the order in which they were accepted, whatever the clock does.
Between classes the message with the earliest due time leaves first, due = accepted + class · ageing, so a
message of class u waits at most u · ageing longer than an urgent one (class 0) of the same moment: low classes
wait and never starve.

A message may be kept beyond the confirm, until a consumer's receipt: `store.sent`.
"""

from __future__ import annotations

import base64
import heapq
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from flyball.errors import InvalidValue
from flyball.message import HeaderValue, Message
from flyball.store.protocol import Database, Full, NeverFits, StoreError, Transaction
from flyball.store.sqlite import plain_connection

LEAST_URGENT = 9
USUAL = 4

_INSERT = """INSERT INTO flyball_outbox
    (id, channel, urgency, accepted_s, size_bytes, key, headers, event_time_s, content_type, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
COLUMNS = "id, channel, body, key, headers, event_time_s, content_type, urgency, accepted_s"
# What SQLite itself spends on a message besides its contents, roughly: row, index entry, integers.
_OVERHEAD_BYTES = 64


class OutboxEntry(Protocol):
    """What the outbox stores: a message for `channel`; `urgency` 0 is the most urgent class, 9 the least."""

    @property
    def channel(self) -> str: ...

    @property
    def urgency(self) -> int: ...

    @property
    def message(self) -> Message: ...


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted message with its sequence number, which grows by acceptance and is never given twice."""

    seq: int
    accepted_s: float
    channel: str
    urgency: int
    message: Message


def check_urgency(urgency: int) -> int:
    """Return `urgency` if there is such a class."""
    if not 0 <= urgency <= LEAST_URGENT:
        raise InvalidValue(f"urgency must be an integer from 0 (most urgent) to {LEAST_URGENT}, got {urgency!r}")
    return urgency


def enqueue(
    connection: Any, channel: str, *messages: Message, urgency: int = USUAL, now_s: float | None = None
) -> list[int]:
    """Accept messages for `channel` in the transaction that `connection` is in; return their sequence numbers.

    `connection` is a `sqlite3.Connection`, or a SQLAlchemy connection or session, on the file that holds the
    outbox. They are accepted when that transaction commits, and never were when it rolls back.
    """
    transaction = plain_connection(connection)
    present = transaction.execute("SELECT 1 FROM sqlite_master WHERE name = 'flyball_outbox'").fetchone()
    if present is None:
        raise StoreError(
            "this database has no outbox: open it once with flyball.store.SqliteDatabase(path) before the "
            "application writes to it"
        )
    accepted_s = time.time() if now_s is None else now_s
    return _insert(transaction, [_row(channel, urgency, message, accepted_s) for message in messages])


def no_room(waiting_bytes: int, needed_bytes: int, max_bytes: int) -> Full:
    """Return the error for `needed_bytes` that do not fit beside `waiting_bytes`."""
    if needed_bytes > max_bytes:
        return NeverFits(
            f"{needed_bytes} bytes do not fit into an outbox of at most {max_bytes} bytes: raise max_bytes"
        )
    return Full(
        f"the outbox holds {waiting_bytes} of at most {max_bytes} bytes and {needed_bytes} more do not fit: "
        "wait until some are confirmed, or raise max_bytes"
    )


class Outbox:
    """The outbox of a database, for those who accept (`append`) and for the one relay (`take`, `confirm`).

    A relay that shares the outbox with relays in other processes has to hold a lease meanwhile (`Leases`):
    without one both would send everything, which is allowed (same id) and wasteful.

    `max_bytes` bounds what may wait, for every process that writes to this file; None leaves the bound as it is.
    """

    def __init__(
        self, database: Database, *, max_bytes: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise InvalidValue(f"max_bytes must be an integer >= 1, got {max_bytes!r}")
        self._database = database
        self._clock = clock
        self._taking = threading.Lock()
        self._cursor: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._out: dict[int, int] = {}
        if max_bytes is not None:
            database.write(lambda t: t.execute("UPDATE flyball_outbox_total SET max_bytes = ?", (max_bytes,)))

    def append(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """Accept all of these or, if there is no room (`Full`), none; return their sequence numbers.

        Calls from several threads share the wait for the disk.
        """
        now_s = self._clock()
        rows = [_row(entry.channel, entry.urgency, entry.message, now_s) for entry in entries]
        return self._database.write(lambda transaction: _insert(transaction, rows))

    def take(self, limit: int, *, urgency_step_s: float = 5.0) -> list[Pending]:
        """The next messages to send, at most `limit`, in order; they are ours until confirmed or given back."""
        with self._taking:
            chosen = self._database.read(lambda t: self._choose(t, limit, urgency_step_s))
            for pending in chosen:
                urgency = pending.urgency
                self._returned.pop(pending.seq, None)
                self._out[pending.seq] = urgency
                self._cursor[urgency] = max(pending.seq, self._cursor.get(urgency, 0))
            return chosen

    def confirm(self, seqs: Iterable[int]) -> None:
        """The broker has these: forget them.

        Not waited for on disk: forgetting this in a power loss sends a message again, with the same id.
        """
        rows = [(seq,) for seq in seqs]
        self._database.write(
            lambda t: t.executemany("DELETE FROM flyball_outbox WHERE seq = ?", rows), durable=False
        )
        with self._taking:
            for (seq,) in rows:
                self._out.pop(seq, None)
                self._returned.pop(seq, None)

    def give_back(self, seqs: Iterable[int]) -> None:
        """These could not be sent: the next `take` brings them again, before later ones of their class."""
        with self._taking:
            for seq in seqs:
                urgency = self._out.pop(seq, None)
                if urgency is not None:
                    self._returned[seq] = urgency

    @property
    def taken(self) -> int:
        """Messages that this relay has taken and neither confirmed nor given back."""
        with self._taking:
            return len(self._out)

    def read(self, first: int, last: int, limit: int) -> list[Pending]:
        """Unconfirmed messages with first <= seq <= last, in order of acceptance, at most `limit`.

        For a relay that keeps its own account of what it has: nothing is marked as taken.
        """
        rows = self._database.read(
            lambda t: t.execute(
                f"SELECT seq, {COLUMNS} FROM flyball_outbox "
                "WHERE seq BETWEEN ? AND ? AND sent_s IS NULL ORDER BY seq LIMIT ?",
                (first, last, limit),
            ).fetchall()
        )
        return [as_pending(row) for row in rows]

    def newest(self) -> int:
        """The highest sequence number that was ever given; 0: none. What is committed later gets a higher one."""
        row = self._database.read(
            lambda t: t.execute("SELECT seq FROM sqlite_sequence WHERE name = 'flyball_outbox'").fetchone()
        )
        return 0 if row is None else int(row[0])

    def pending(self) -> tuple[int, int]:
        """Messages that are kept (not confirmed, taken ones included, or without receipt), and their bytes."""
        row = self._database.read(
            lambda t: t.execute("SELECT messages, bytes FROM flyball_outbox_total").fetchone()
        )
        return int(row[0]), int(row[1])

    def oldest_accepted_s(self) -> float | None:
        """When the oldest message that is kept was accepted (seconds since 1970); None: the outbox is empty."""
        row = self._database.read(
            lambda t: t.execute("SELECT accepted_s FROM flyball_outbox ORDER BY seq LIMIT 1").fetchone()
        )
        return None if row is None else float(row[0])

    def _choose(self, transaction: Transaction, limit: int, urgency_step_s: float) -> list[Pending]:
        classes = [
            self._waiting(transaction, urgency, limit, urgency_step_s) for urgency in range(LEAST_URGENT + 1)
        ]
        # Each class is in order already; merging them by due time costs one comparison a class and message.
        seqs = [seq for _, _, seq in islice(heapq.merge(*classes), limit)]
        return [_pending(transaction, seq) for seq in seqs]

    def _waiting(
        self, transaction: Transaction, urgency: int, limit: int, urgency_step_s: float
    ) -> Iterator[tuple[float, int, int]]:
        """(due, class, seq) of what waits in a class, in order of acceptance.

        A row with a higher seq is never committed before one with a lower: SQLite has one writer at a time. So
        everything up to the cursor has been taken, except what was given back since.
        """
        again = sorted(seq for seq, its_class in self._returned.items() if its_class == urgency)
        rows = [
            row
            for seq in again[:limit]
            for row in transaction.execute(
                "SELECT seq, accepted_s FROM flyball_outbox WHERE seq = ?", (seq,)
            ).fetchall()
        ]
        rows += transaction.execute(
            "SELECT seq, accepted_s FROM flyball_outbox "
            "WHERE urgency = ? AND seq > ? AND sent_s IS NULL ORDER BY seq LIMIT ?",
            (urgency, self._cursor.get(urgency, 0), limit),
        ).fetchall()
        due_s = float("-inf")
        for seq, accepted_s in rows:
            # Never before its predecessor, also where the wall clock went back between the two.
            due_s = max(due_s, accepted_s + urgency * urgency_step_s)
            yield due_s, urgency, seq


def _insert(transaction: Transaction, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    if not rows:
        return []
    waiting, max_bytes = transaction.execute("SELECT bytes, max_bytes FROM flyball_outbox_total").fetchone()
    needed = sum(row[4] for row in rows)
    if max_bytes is not None and waiting + needed > max_bytes:
        raise no_room(waiting, needed, max_bytes)
    transaction.executemany(_INSERT, rows)
    # One statement after the other in one transaction: nobody else's number is in between.
    last = int(transaction.execute("SELECT last_insert_rowid()").fetchone()[0])
    return list(range(last - len(rows) + 1, last + 1))


def _row(channel: str, urgency: int, message: Message, accepted_s: float) -> tuple[Any, ...]:
    headers = (
        json.dumps({name: _carried(value) for name, value in message.headers.items()}) if message.headers else None
    )
    size_bytes = _OVERHEAD_BYTES + len(message.id) + len(channel) + len(message.body)
    size_bytes += len(message.key or b"") + len(headers or "")
    return (
        message.id,
        channel,
        check_urgency(urgency),
        accepted_s,
        size_bytes,
        message.key,
        headers,
        message.event_time_s,
        message.content_type,
        message.body,
    )


def _pending(transaction: Transaction, seq: int) -> Pending:
    return as_pending(
        transaction.execute(f"SELECT seq, {COLUMNS} FROM flyball_outbox WHERE seq = ?", (seq,)).fetchone()
    )


def as_pending(row: Sequence[Any]) -> Pending:
    seq, id, channel, body, key, carried, event_time_s, content_type, urgency, accepted_s = row
    headers = {} if carried is None else {name: _restored(value) for name, value in json.loads(carried).items()}
    message = Message(body, id, key, headers, event_time_s, content_type)
    return Pending(seq, accepted_s, channel, urgency, message)


def _carried(value: HeaderValue) -> Any:
    """JSON knows no bytes: they travel as the only kind of list."""
    return [base64.b64encode(value).decode()] if isinstance(value, bytes) else value


def _restored(value: Any) -> HeaderValue:
    restored: HeaderValue = base64.b64decode(value[0]) if isinstance(value, list) else value
    return restored
