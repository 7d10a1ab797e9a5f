"""Messages that were accepted and that no broker has confirmed yet.

`append` returns when the messages are safe on disk. A relay, such as the publisher, reads them in order of
acceptance (`read`), sends them, and removes them with `confirm`. The relay keeps in memory what it has read: after
a crash the next one finds every message that was not confirmed, and sends it again with the same id.

The outbox is *transactional* for an application that has its own tables in the same file: `enqueue` writes with
the application's connection, so the message exists if and only if the application's transaction commits.

A message may stay beyond the confirm, until a consumer's delivery receipt: `store.sent`.
"""

from __future__ import annotations

import base64
import json
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flyball.errors import InvalidValue
from flyball.message import HeaderValue, Message, check_message, check_name
from flyball.steady_clock import SteadyClock
from flyball.store.application_connection import plain_connection
from flyball.store.protocol import Database, Full, NeverFits, StoreError, Transaction

LEAST_URGENT = 9
USUAL = 4

_INSERT = """INSERT INTO flyball_outbox
    (id, channel, urgency, accepted_s, size_bytes, key, headers, event_time_s, content_type, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
COLUMNS = "id, channel, body, key, headers, event_time_s, content_type, urgency, accepted_s"
# Approximate overhead of SQLite for a message: row, index entry, integers.
_OVERHEAD_BYTES = 64
_CLOCK = SteadyClock()


class OutboxEntry(Protocol):
    """Input of the outbox: a message for `channel`; `urgency` 0 is the most urgent class, 9 the least."""

    @property
    def channel(self) -> str: ...

    @property
    def urgency(self) -> int: ...

    @property
    def message(self) -> Message: ...


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted message with its sequence number, which grows with every message and is never used twice.

    `problem` says why a row that another program wrote is no message; the message then has what could be read.
    """

    seq: int
    accepted_s: float
    channel: str
    urgency: int
    message: Message
    problem: str | None = None


def check_urgency(urgency: int) -> int:
    """Return `urgency` as a plain integer if there is such a class."""
    try:
        urgency = operator.index(urgency)
    except TypeError:
        raise InvalidValue(f"urgency must be an integer, got {type(urgency).__name__} {urgency!r:.60}") from None
    if not 0 <= urgency <= LEAST_URGENT:
        raise InvalidValue(f"urgency must be an integer from 0 (most urgent) to {LEAST_URGENT}, got {urgency!r}")
    return urgency


def enqueue(
    connection: Any, channel: str, *messages: Message, urgency: int = USUAL, now_s: float | None = None
) -> list[int]:
    """Accept messages for `channel` in the transaction that `connection` is in; return their sequence numbers.

    `connection` is a `sqlite3.Connection`, or a SQLAlchemy connection or session, on the file with the outbox. The
    messages are accepted if and only if that transaction commits. All of them are checked before any is written.
    """
    check_name(channel)
    urgency = check_urgency(urgency)
    checked = [check_message(message) for message in messages]
    transaction = plain_connection(connection)
    present = transaction.execute("SELECT 1 FROM sqlite_master WHERE name = 'flyball_outbox'").fetchone()
    if present is None:
        raise StoreError(
            "this database has no outbox: open it once with flyball.store.SqliteDatabase(path) before the "
            "application writes to it"
        )
    accepted_s = time.time() if now_s is None else now_s
    return _insert(transaction, [_row(channel, urgency, message, accepted_s) for message in checked])


def no_room(waiting_bytes: int, needed_bytes: int, max_bytes: int) -> Full:
    """Return the error for `needed_bytes` that do not fit beside `waiting_bytes`."""
    if needed_bytes > max_bytes:
        error: Full = NeverFits(
            f"{needed_bytes} bytes do not fit into an outbox of at most {max_bytes} bytes: raise max_bytes"
        )
    else:
        error = Full(
            f"the outbox holds {waiting_bytes} of at most {max_bytes} bytes and {needed_bytes} more do not fit: "
            "wait until some are confirmed, delete dead letters if there are any, or raise max_bytes"
        )
    error.room_bytes = max_bytes - waiting_bytes
    return error


class Outbox:
    """The outbox of a database, for programs that accept messages (`append`) and one relay (`read`, `confirm`).

    A relay that shares the outbox with relays in other processes must have a lease (`Leases`): without one both
    would send everything, which is allowed (same id) and wasteful.

    `max_bytes` limits the size of the outbox, for every process that writes to this file; None leaves the limit as
    it is.
    """

    def __init__(
        self, database: Database, *, max_bytes: int | None = None, clock: Callable[[], float] = _CLOCK.now
    ) -> None:
        if max_bytes is not None and max_bytes <= 0:
            raise InvalidValue(f"max_bytes must be an integer >= 1, got {max_bytes!r}")
        self._database = database
        self._clock = clock
        if max_bytes is not None:
            database.write(lambda t: t.execute("UPDATE flyball_outbox_total SET max_bytes = ?", (max_bytes,)))

    def append(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """Accept all messages or, if they do not fit (`Full`), none; return their sequence numbers.

        Calls from several threads share the wait for the disk.
        """
        now_s = self._clock()
        rows = [_row(entry.channel, entry.urgency, entry.message, now_s) for entry in entries]
        return self._database.write(lambda transaction: _insert(transaction, rows))

    def confirm(self, seqs: Iterable[int]) -> None:
        """Remove messages that the broker has confirmed.

        Does not wait for the disk: after a power loss a message may be sent again, with the same id.
        """
        rows = [(seq,) for seq in seqs]
        self._database.write(
            lambda t: t.executemany("DELETE FROM flyball_outbox WHERE seq = ?", rows), durable=False
        )

    def read(self, first: int, last: int, limit: int) -> list[Pending]:
        """Read unconfirmed messages with first <= seq <= last, in order of acceptance, at most `limit`."""
        return self.read_part(first, last, limit)[0]

    def read_part(
        self, first: int, last: int, limit: int, max_bytes: int | None = None
    ) -> tuple[list[Pending], int]:
        """Read like `read`, no more once `max_bytes` are reached; return also up to which number that is all."""

        def read_rows(transaction: Transaction) -> tuple[list[Any], bool]:
            result = transaction.execute(
                f"SELECT seq, {COLUMNS}, CAST(size_bytes AS INTEGER) FROM flyball_outbox "
                "WHERE seq BETWEEN ? AND ? AND sent_s IS NULL ORDER BY seq LIMIT ?",
                (first, last, limit),
            )
            if max_bytes is None:
                rows = result.fetchall()
                return rows, len(rows) < limit
            rows, size_bytes = [], 0
            while (row := result.fetchone()) is not None:
                rows.append(row)
                size_bytes += row[-1]
                if size_bytes >= max_bytes:
                    return rows, False
            return rows, len(rows) < limit

        rows, complete = self._database.read(read_rows)
        return [as_pending(row[:-1]) for row in rows], last if complete else rows[-1][0]

    def newest(self) -> int:
        """Highest sequence number used so far, 0 if none; messages committed later get higher ones."""
        row = self._database.read(
            lambda t: t.execute("SELECT seq FROM sqlite_sequence WHERE name = 'flyball_outbox'").fetchone()
        )
        return 0 if row is None else int(row[0])

    def pending(self) -> tuple[int, int]:
        """Number of messages that wait for a confirm or a delivery receipt, and their bytes."""
        row = self._database.read(
            lambda t: t.execute("SELECT messages, bytes - dead_bytes FROM flyball_outbox_total").fetchone()
        )
        return int(row[0]), int(row[1])


def _insert(transaction: Transaction, rows: Sequence[tuple[Any, ...]]) -> list[int]:
    if not rows:
        return []
    waiting, max_bytes = transaction.execute("SELECT bytes, max_bytes FROM flyball_outbox_total").fetchone()
    needed = sum(row[4] for row in rows)
    if max_bytes is not None and waiting + needed > max_bytes:
        raise no_room(waiting, needed, max_bytes)
    transaction.executemany(_INSERT, rows)
    # Consecutive statements in one transaction: no other writer's number is in between.
    last = int(transaction.execute("SELECT last_insert_rowid()").fetchone()[0])
    return list(range(last - len(rows) + 1, last + 1))


def _row(channel: str, urgency: int, message: Message, accepted_s: float) -> tuple[Any, ...]:
    headers = (
        json.dumps({name: _to_json(value) for name, value in message.headers.items()}) if message.headers else None
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


def as_pending(row: Sequence[Any]) -> Pending:
    seq, id, channel, body, key, headers_json, event_time_s, content_type, urgency, accepted_s = row
    headers: dict[str, HeaderValue] = {}
    problem = None
    if type(body) is not bytes or (key is not None and type(key) is not bytes):
        problem = f"body and key of message {id!r:.80} must be bytes, got {body!r:.40} and {key!r:.40}"
        body, key = _as_bytes(body), None if key is None else _as_bytes(key)
    if headers_json is not None:
        try:
            headers = {name: _from_json(value) for name, value in json.loads(headers_json).items()}
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            problem = f"the headers of message {id!r:.80} are not those of an outbox: {headers_json!r:.80}"
    if type(accepted_s) not in (int, float) or type(urgency) is not int:
        problem = (
            f"accepted_s and urgency of message {id!r:.80} must be a number and an integer, got "
            f"{accepted_s!r:.40} and {urgency!r:.40}"
        )
        accepted_s, urgency = 0.0, USUAL
    message = Message(body, id, key, headers, event_time_s, content_type)
    return Pending(seq, accepted_s, channel, urgency, message, problem)


def _to_json(value: HeaderValue) -> Any:
    """Convert a header value to JSON, which has no bytes: they become a list of one Base64 string."""
    return [base64.b64encode(value).decode()] if isinstance(value, bytes) else value


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _from_json(value: Any) -> HeaderValue:
    restored: HeaderValue = base64.b64decode(value[0]) if isinstance(value, list) else value
    return restored
