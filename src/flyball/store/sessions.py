"""Sessions: members of a space that are alive as long as they renew, each with its latest report.

Every session has a token larger than all before it. Of several sessions of one member the newest counts: the
others cannot renew any more, but may still report until they expire, so that it is known when they have stopped.
An expired session is over for good: its member has to begin another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from flyball.errors import InvalidValue
from flyball.store.documents import next_version
from flyball.store.leases import is_alive
from flyball.store.protocol import Database, Transaction

Renewal: TypeAlias = Literal["renewed", "superseded", "expired"]


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session and its report, any JSON value."""

    member: str
    token: int
    alive: bool
    value: Any


class Sessions:
    """The sessions of one space ("group shop", …) of a database."""

    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self._space = space

    def begin(self, member: str, value: Any, *, ttl_s: float) -> int:
        """Begin a session; return its token. It counts from the beginning of the call."""
        if ttl_s <= 0:
            raise InvalidValue(f"ttl_s of member {member!r} must be > 0, got {ttl_s:g}")
        text, called = json.dumps(value), self._database.time()

        def work(transaction: Transaction) -> int:
            token = next_version(transaction)
            transaction.execute(
                "INSERT INTO flyball_session (space, member, token, boot, until_s, ttl_s, value) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._space, member, token, called.boot, called.seconds + ttl_s, ttl_s, text),
            )
            return token

        return self._database.write(work)

    def renew(self, member: str, token: int, value: Any, *, ttl_s: float) -> Renewal:
        """Report, and extend the session. `superseded`: the report was written, the session was not extended.

        It does not survive a power loss, after which the sessions of a host are over anyway.
        """
        text, called = json.dumps(value), self._database.time()

        def work(transaction: Transaction) -> Renewal:
            # Read the time again: while we waited for the lock the session may have expired.
            now = self._database.time()
            rows = transaction.execute(
                "SELECT token, boot, until_s, ttl_s FROM flyball_session WHERE space = ? AND member = ?",
                (self._space, member),
            ).fetchall()
            mine = {int(row[0]): row for row in rows}.get(token)
            if mine is None or not is_alive(mine[1], mine[2], mine[3], now):
                return "expired"
            superseded = max(int(row[0]) for row in rows) > token
            until_s = mine[2] if superseded else called.seconds + ttl_s
            transaction.execute(
                "UPDATE flyball_session SET boot = ?, until_s = ?, ttl_s = ?, value = ? "
                "WHERE space = ? AND member = ? AND token = ?",
                (called.boot, until_s, ttl_s, text, self._space, member, token),
            )
            return "superseded" if superseded else "renewed"

        return self._database.write(work, durable=False)

    def end(self, member: str, token: int) -> None:
        """End a session at once; it is no error if it is over."""
        self._database.write(lambda t: self.remove(t, [(member, token)]))

    def all(self) -> list[StoredSession]:
        """All sessions by member and token, in one consistent state; also expired ones that nobody removed."""
        # A session that had expired before we read is over. One that was renewed while we read has more time left
        # than its time to live by the first of the two times, but not by the second.
        before = self._database.time()
        rows = self._database.read(
            lambda t: t.execute(
                "SELECT member, token, boot, until_s, ttl_s, value FROM flyball_session WHERE space = ? "
                "ORDER BY member, token",
                (self._space,),
            ).fetchall()
        )
        after = self._database.time()
        return [
            StoredSession(
                member,
                int(token),
                until_s > before.seconds and is_alive(boot, max(until_s, after.seconds + 1e-9), ttl_s, after),
                json.loads(value),
            )
            for member, token, boot, until_s, ttl_s, value in rows
        ]

    def remove(self, transaction: Transaction, sessions: Iterable[tuple[str, int]]) -> None:
        """Remove sessions in a transaction, such as one that is guarded by a lease: they can no longer renew."""
        transaction.executemany(
            "DELETE FROM flyball_session WHERE space = ? AND member = ? AND token = ?",
            [(self._space, member, token) for member, token in sessions],
        )
