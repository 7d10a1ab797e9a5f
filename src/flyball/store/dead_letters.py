"""Messages that were accepted and that a target then refused for good, kept with the reason.

They are in a table beside the outbox, in the same file; a message is moved from one to the other in one
transaction, so it is always in exactly one of them. They count towards the outbox's `max_bytes`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flyball.errors import InvalidValue
from flyball.message import Message
from flyball.store.outbox import COLUMNS, as_pending
from flyball.store.protocol import Database, StoreError, Transaction
from flyball.store.sqlite import SqliteDatabase

_STORED = "id, channel, urgency, accepted_s, size_bytes, key, headers, event_time_s, content_type, body"
_SELECT = f"SELECT seq, {COLUMNS}, rejected_s, target, reason FROM flyball_outbox_dead"


class Rejection(NamedTuple):
    """Why message `seq` of the outbox becomes a dead letter, and which targets refused it."""

    seq: int
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was rejected; `number` is its sequence number in the outbox.

    An outbox in memory does not know when a message was accepted.
    """

    number: int
    message: Message
    channel: str
    urgency: int
    accepted_s: float | None
    rejected_s: float
    target: str
    reason: str


class DeadLetters:
    """The dead letters of this database's outbox. `numbers` None means all of them."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(self, rejections: Iterable[Rejection]) -> None:
        """Move messages out of the outbox.

        Does not wait for the disk: after a power loss a message is in the outbox again, and refused again.
        """
        now_s = self._clock()
        rows = [(now_s, each.target, each.reason, each.seq) for each in rejections]

        def move(transaction: Transaction) -> None:
            transaction.executemany(
                f"INSERT INTO flyball_outbox_dead (seq, {_STORED}, rejected_s, target, reason) "
                f"SELECT seq, {_STORED}, ?, ?, ? FROM flyball_outbox WHERE seq = ?",
                rows,
            )
            transaction.executemany("DELETE FROM flyball_outbox WHERE seq = ?", [row[-1:] for row in rows])

        self._database.write(move, durable=False)

    def count(self) -> tuple[int, int]:
        """Number of dead letters, and their bytes."""
        row = self._database.read(
            lambda t: t.execute("SELECT dead_messages, dead_bytes FROM flyball_outbox_total").fetchone()
        )
        return int(row[0]), int(row[1])

    def read_many(self, limit: int = 1000, after: int = 0) -> list[DeadLetter]:
        """Read the first `limit` with a number above `after`, in order of their numbers."""
        rows = self._database.read(
            lambda t: t.execute(f"{_SELECT} WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)).fetchall()
        )
        return [_letter(row) for row in rows]

    def read(self, number: int) -> DeadLetter:
        row = self._database.read(lambda t: t.execute(f"{_SELECT} WHERE seq = ?", (number,)).fetchone())
        if row is None:
            raise no_such_letter(number)
        return _letter(row)

    def replay(self, numbers: Iterable[int] | None = None) -> int:
        """Put messages back into the outbox, under new numbers, to be sent again; return how many."""

        def move(transaction: Transaction) -> int:
            seqs = _existing(transaction, numbers)
            transaction.executemany(
                f"INSERT INTO flyball_outbox ({_STORED}) SELECT {_STORED} FROM flyball_outbox_dead WHERE seq = ?",
                [(seq,) for seq in seqs],
            )
            _remove(transaction, seqs)
            return len(seqs)

        return self._database.write(move)

    def delete(self, numbers: Iterable[int] | None = None) -> int:
        """Remove dead letters for good; return how many."""

        def remove(transaction: Transaction) -> int:
            seqs = _existing(transaction, numbers)
            _remove(transaction, seqs)
            return len(seqs)

        return self._database.write(remove)


def open_outbox_file(path: str | Path) -> SqliteDatabase:
    """Open a database that has an outbox already; nothing is made where there is none."""
    if not Path(path).is_file():
        raise StoreError(f"there is no file {path}: name the outbox of a publisher")
    with closing(sqlite3.connect(path)) as connection:
        try:
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'flyball_outbox'").fetchone()
        except sqlite3.OperationalError as error:
            raise StoreError(f"{path} cannot be read ({error}): try again") from None
        except sqlite3.DatabaseError:
            known = (1,)  # no database: refused below, with the words of the store
        if known is None:
            raise StoreError(f"{path} has no outbox: name the outbox of a publisher")
    return SqliteDatabase(path)


def no_such_letter(number: int) -> InvalidValue:
    return InvalidValue(f"there is no dead letter {number}: `flyball outbox list` shows their numbers")


def _existing(transaction: Transaction, numbers: Iterable[int] | None) -> list[int]:
    """Return these numbers, each once; raises if one of them is no dead letter."""
    if numbers is None:
        return [int(row[0]) for row in transaction.execute("SELECT seq FROM flyball_outbox_dead").fetchall()]
    seqs = list(dict.fromkeys(numbers))
    for seq in seqs:
        if transaction.execute("SELECT 1 FROM flyball_outbox_dead WHERE seq = ?", (seq,)).fetchone() is None:
            raise no_such_letter(seq)
    return seqs


def _remove(transaction: Transaction, seqs: Iterable[int]) -> None:
    transaction.executemany("DELETE FROM flyball_outbox_dead WHERE seq = ?", [(seq,) for seq in seqs])


def _letter(row: Sequence[Any]) -> DeadLetter:
    *stored, rejected_s, target, reason = row
    pending = as_pending(stored)
    return DeadLetter(
        number=pending.seq,
        message=pending.message,
        channel=pending.channel,
        urgency=pending.urgency,
        accepted_s=pending.accepted_s,
        rejected_s=rejected_s,
        target=target,
        reason=reason,
    )
