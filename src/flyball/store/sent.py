"""Messages of an outbox that a broker has confirmed and that stay until a consumer's delivery receipt.

They stay in the table and only get a time: `Outbox.read` skips them, and a message that waits too
long for its delivery receipt can be sent again, with the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flyball.steady_clock import SteadyClock
from flyball.store.outbox import COLUMNS, Pending, as_pending
from flyball.store.protocol import Database, Transaction

_CLOCK = SteadyClock()


class SentMessages:
    """The messages of this database's outbox that wait for a delivery receipt."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = _CLOCK.now) -> None:
        self._database = database
        self._clock = clock

    def mark(self, seqs: Iterable[int]) -> None:
        """Mark messages as confirmed, without waiting for the disk: after a power loss they are sent again."""
        now_s = self._clock()
        rows = [(now_s, seq) for seq in seqs]
        self._database.write(
            lambda t: t.executemany("UPDATE flyball_outbox SET sent_s = ? WHERE seq = ?", rows), durable=False
        )

    def received(self, ids: Iterable[str]) -> int:
        """Remove messages that consumers have received; return their number. Durable: a receipt comes once."""
        rows = [(id,) for id in ids]
        return self._database.write(
            lambda t: (
                t.executemany("DELETE FROM flyball_outbox WHERE id = ? AND sent_s IS NOT NULL", rows).rowcount
            )
        )

    def overdue(self, timeout_s: float, limit: int) -> list[Pending]:
        """Read messages sent at least `timeout_s` ago and without receipt, oldest first, at most `limit`.

        Those of an earlier run may have a time that is still to come, because the machine's clock was set back:
        they are overdue too.
        """
        now_s = self._clock()
        select = f"SELECT seq, {COLUMNS} FROM flyball_outbox WHERE sent_s"

        def read_rows(transaction: Transaction) -> list[Any]:
            # Two ranges of the index: a statement with OR would read and sort all of them.
            late = (now_s - timeout_s, limit)
            rows = transaction.execute(f"{select} <= ? ORDER BY sent_s LIMIT ?", late).fetchall()
            ahead = (now_s + timeout_s, limit - len(rows))
            return [*rows, *transaction.execute(f"{select} > ? ORDER BY sent_s LIMIT ?", ahead).fetchall()]

        return [as_pending(row) for row in self._database.read(read_rows)]

    def count(self) -> int:
        row = self._database.read(
            lambda t: t.execute("SELECT COUNT(*) FROM flyball_outbox WHERE sent_s IS NOT NULL").fetchone()
        )
        return int(row[0])

    def forget_all(self) -> None:
        """Remove all confirmed messages: receipts are no longer expected."""
        self._database.write(lambda t: t.execute("DELETE FROM flyball_outbox WHERE sent_s IS NOT NULL"))
