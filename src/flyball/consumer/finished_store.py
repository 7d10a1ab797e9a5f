"""Store across restarts which messages were handled, so that a repeat is acknowledged and not handled again.

At least once means that a message can come twice: its acknowledgement was lost with the connection, or the
program died between the handler and the acknowledgement. Inside one process `brokers.core.dedup` recognises that;
this store also does after a restart, by message id, for a limited time. Between the handler's end and the record
there is still a gap: a handler whose effect must happen exactly once writes `mark` in its own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from flyball.errors import InvalidValue
from flyball.store.protocol import Database, Transaction

_TABLE = (
    "CREATE TABLE IF NOT EXISTS flyball_finished "
    "(space TEXT NOT NULL, id TEXT NOT NULL, finished_s REAL NOT NULL, PRIMARY KEY (space, id))"
)
_INDEX = "CREATE INDEX IF NOT EXISTS flyball_finished_age ON flyball_finished (space, finished_s)"


class FinishedStore:
    """The ids of finished messages of one queue (`space`), for `max_age_s`."""

    def __init__(self, database: Database, space: str, max_age_s: float = 86_400.0) -> None:
        if not max_age_s > 0:
            raise InvalidValue(f"max_age_s must be > 0, got {max_age_s}")
        self._database = database
        self._space = space
        self._max_age_s = max_age_s

        def prepare(transaction: Transaction) -> None:
            transaction.execute(_TABLE)
            transaction.execute(_INDEX)

        database.write(prepare)

    def find(self, ids: Sequence[str]) -> set[str]:
        """Find those of the ids that were marked within `max_age_s`."""
        oldest_s = time.time() - self._max_age_s
        marks = ", ".join("?" * len(ids))
        rows = self._database.read(
            lambda t: t.execute(
                f"SELECT id FROM flyball_finished WHERE space = ? AND finished_s >= ? AND id IN ({marks})",
                (self._space, oldest_s, *ids),
            ).fetchall()
        )
        return {row[0] for row in rows}

    def mark(self, ids: Sequence[str], transaction: Transaction | None = None) -> None:
        """Mark messages as finished, in the handler's own transaction if there is one."""
        now_s = time.time()

        def work(t: Transaction) -> None:
            t.executemany(
                "INSERT INTO flyball_finished (space, id, finished_s) VALUES (?, ?, ?) "
                "ON CONFLICT (space, id) DO UPDATE SET finished_s = excluded.finished_s",
                [(self._space, id, now_s) for id in ids],
            )
            t.execute(
                "DELETE FROM flyball_finished WHERE space = ? AND finished_s < ?",
                (self._space, now_s - self._max_age_s),
            )

        if transaction is not None:
            work(transaction)
        else:
            self._database.write(work)
