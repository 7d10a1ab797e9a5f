"""Leadership: named leases with fencing tokens.

A lease has a time to live and is renewed before it expires. A vacant lease goes to the smallest id among the live
candidates; a healthy holder is never replaced, however small the id of a newcomer.

Three things can go wrong with a lease:

* *The wall clock jumps.* It is not used: leases expire by the host's boot clock (`host_time`), the same for every
  process that shares the file.
* *The holder dies*, or the host restarts. The lease expires; after a restart it is vacant at once.
* *The holder is paused*, the lease passes to another process, then the old holder continues and writes as if it
  still led. No clock helps against this: what it checked before may be outdated when it writes. Each new holder
  therefore gets a larger token, and a write is one transaction with the check that its token is still the newest
  (`guarded`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from flyball.errors import InvalidValue
from flyball.store.host_time import HostTime
from flyball.store.protocol import Database, Fenced, Transaction

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease and its holder. `token` is larger than that of every earlier holder."""

    name: str
    holder: str
    token: int
    boot: str
    until_s: float
    ttl_s: float

    def valid(self, now: HostTime) -> bool:
        """Whether it has not expired: if not, the holder should stop; it is no permission to write."""
        return is_alive(self.boot, self.until_s, self.ttl_s, now)


class Leases:
    """The leases of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def campaign(self, name: str, candidate: str, *, ttl_s: float) -> Lease | None:
        """Register `candidate` as alive; return the lease if it has it now.

        Every candidate, holder or not, calls this about three times in `ttl_s`; it also renews the lease. The
        lease counts from the beginning of the call, so a slow disk shortens it: the holder never assumes a longer
        lease than the others do.
        """
        if ttl_s <= 0:
            raise InvalidValue(f"ttl_s of lease {name!r} must be > 0, got {ttl_s:g}")
        called = self._database.time()
        return self._database.write(lambda t: self._campaign(t, name, candidate, ttl_s, called))

    def release(self, lease: Lease) -> None:
        """Release it and stop being a candidate; it is no error if it was lost already."""

        def work(transaction: Transaction) -> None:
            transaction.execute(
                "UPDATE flyball_lease SET holder = NULL WHERE name = ? AND token = ? AND holder = ?",
                (lease.name, lease.token, lease.holder),
            )
            _withdraw(transaction, lease.name, lease.holder)

        self._database.write(work)

    def withdraw(self, name: str, candidate: str) -> None:
        """Stop being a candidate without having the lease."""
        self._database.write(lambda t: _withdraw(t, name, candidate))

    def holder(self, name: str) -> Lease | None:
        """The current lease; None if it is vacant."""
        lease = self._database.read(lambda t: _current(t, name))
        # Read the time afterwards: a lease that was renewed in between would have more time left than it can have.
        now = self._database.time()
        return lease if lease is not None and lease.valid(now) else None

    def candidates(self, name: str) -> list[str]:
        """The live candidates, the next holder first."""
        now = self._database.time()
        return self._database.read(lambda t: _live(t, name, now))

    def guarded(self, lease: Lease, work: Callable[[Transaction], Result]) -> Result:
        """Run `work` and the check of the token in one transaction; raises `Fenced` if the lease was lost."""

        def checked(transaction: Transaction) -> Result:
            check_token(transaction, lease)
            return work(transaction)

        return self._database.write(checked)

    def _campaign(
        self, transaction: Transaction, name: str, candidate: str, ttl_s: float, called: HostTime
    ) -> Lease | None:
        until_s = called.seconds + ttl_s
        transaction.execute(
            "INSERT INTO flyball_candidate (lease, id, boot, until_s, ttl_s) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (lease, id) DO UPDATE SET boot = excluded.boot, until_s = excluded.until_s, "
            "ttl_s = excluded.ttl_s",
            (name, candidate, called.boot, until_s, ttl_s),
        )
        # Read the time again inside the transaction: while we waited for the lock a lease may have expired.
        now = self._database.time()
        current = _current(transaction, name)
        if current is not None and current.valid(now):
            if current.holder != candidate:
                return None
            lease = replace(current, until_s=until_s, ttl_s=ttl_s)
        else:
            live = _live(transaction, name, now)
            if not live or live[0] != candidate:
                return None
            lease = Lease(name, candidate, _last_token(transaction, name) + 1, called.boot, until_s, ttl_s)
        transaction.execute(
            "INSERT INTO flyball_lease (name, holder, token, boot, until_s, ttl_s) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = excluded.token, "
            "boot = excluded.boot, until_s = excluded.until_s, ttl_s = excluded.ttl_s",
            (name, lease.holder, lease.token, lease.boot, lease.until_s, lease.ttl_s),
        )
        return lease


def check_token(transaction: Transaction, lease: Lease) -> None:
    """Raise `Fenced` unless `lease` is the newest of its name, as seen by this transaction.

    A lease that has expired and has no new holder still counts: there is no other writer to protect.
    """
    current = _current(transaction, lease.name)
    newest = _last_token(transaction, lease.name)
    if current is None or current.token != lease.token or current.holder != lease.holder:
        raise Fenced(
            f"{lease.holder!r} no longer holds {lease.name!r}: its token {lease.token} "
            + (f"was followed by {newest}" if newest > lease.token else "was released")
            + "; nothing was written, campaign for the lease again"
        )


def is_alive(boot: str, until_s: float, ttl_s: float, now: HostTime) -> bool:
    """Whether it has not expired and is not from before a restart (another boot id, or too much time left)."""
    return boot == now.boot and 0 < until_s - now.seconds <= ttl_s


def _current(transaction: Transaction, name: str) -> Lease | None:
    row = transaction.execute(
        "SELECT name, holder, token, boot, until_s, ttl_s FROM flyball_lease "
        "WHERE name = ? AND holder IS NOT NULL",
        (name,),
    ).fetchone()
    return None if row is None else Lease(*row)


def _last_token(transaction: Transaction, name: str) -> int:
    row = transaction.execute("SELECT token FROM flyball_lease WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def _live(transaction: Transaction, name: str, now: HostTime) -> list[str]:
    rows = transaction.execute(
        "SELECT id, boot, until_s, ttl_s FROM flyball_candidate WHERE lease = ?", (name,)
    ).fetchall()
    return sorted((id for id, boot, until_s, ttl_s in rows if is_alive(boot, until_s, ttl_s, now)), key=rank)


def _withdraw(transaction: Transaction, name: str, candidate: str) -> None:
    transaction.execute("DELETE FROM flyball_candidate WHERE lease = ? AND id = ?", (name, candidate))


def rank(id: str) -> list[str | int]:
    """Sort key of candidates: digits inside an id count as numbers.

    >>> sorted(["node-10", "node-9", "node-9a"], key=rank)
    ['node-9', 'node-9a', 'node-10']
    """
    # split alternates text and digits, so that equal positions have equal types
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", id))]
