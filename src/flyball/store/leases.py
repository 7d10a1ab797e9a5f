"""Who leads: named leases with fencing tokens.

A lease is held for a time to live and renewed before it ends. Who gets a vacant one: the smallest id among those
that are alive and want it; a healthy holder is never pushed aside, however small the id of a newcomer.

Three things can go wrong with a lease, and each has its own answer:

* *The wall clock jumps.* It is not used: leases are judged by the host's boot clock (`host_time`), the same
  for every process that shares the file.
* *The holder dies*, or the host restarts. The lease runs out; after a restart it is vacant at once.
* *The holder is paused*, the lease passes to another, the holder goes on and writes as if it still led. No clock
  helps against this: whatever it checked before may be old when it writes. Each taking therefore gets a larger
  token, and a write is done in one transaction with the check that its token is still the newest (`guarded`).
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
    """What a holder holds. `token` is larger than that of every holder before."""

    name: str
    holder: str
    token: int
    boot: str
    until_s: float
    ttl_s: float

    def valid(self, now: HostTime) -> bool:
        """Whether the holder may still believe in it: a reason to stop early, no permission to write."""
        return _alive(self.boot, self.until_s, self.ttl_s, now)


class Leases:
    """The leases of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def campaign(self, name: str, candidate: str, *, ttl_s: float) -> Lease | None:
        """Say that `candidate` is alive and wants the lease; the lease, if it has it now.

        To be called by every candidate, holder or not, about three times in `ttl_s`: this renews as well.
        The lease counts from the moment of the call, not of its end, so a slow disk shortens it and never
        lets the holder believe longer than the others.
        """
        if ttl_s <= 0:
            raise InvalidValue(f"the time to live of lease {name!r} has to be positive, not {ttl_s:g} s")
        called = self._database.time()
        return self._database.write(lambda t: self._campaign(t, name, candidate, ttl_s, called))

    def release(self, lease: Lease) -> None:
        """Give it up, and stop being a candidate; no error if it was lost already."""

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
        """Who holds it now; None: vacant."""
        now = self._database.time()
        lease = self._database.read(lambda t: _current(t, name))
        return lease if lease is not None and lease.valid(now) else None

    def candidates(self, name: str) -> list[str]:
        """Who is alive and wants it, the next in line first."""
        now = self._database.time()
        return self._database.read(lambda t: _live(t, name, now))

    def guarded(self, lease: Lease, work: Callable[[Transaction], Result]) -> Result:
        """Write under the lease: `work` and the check of the token are one transaction. `Fenced`: not written."""

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
        # Asked again inside the transaction: waiting for the lock may have taken longer than somebody's lease.
        now = self._database.time()
        held = _current(transaction, name)
        if held is not None and held.valid(now):
            if held.holder != candidate:
                return None
            lease = replace(held, until_s=until_s, ttl_s=ttl_s)
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

    A lease that ran out while nobody took it still counts: there is nobody whose work it could spoil.
    """
    held = _current(transaction, lease.name)
    newest = _last_token(transaction, lease.name)
    if held is None or held.token != lease.token or held.holder != lease.holder:
        raise Fenced(
            f"{lease.holder!r} no longer holds {lease.name!r}: its token {lease.token} "
            + (f"was followed by {newest}" if newest > lease.token else "was released")
            + "; nothing was written, ask for the lease again"
        )


def _alive(boot: str, until_s: float, ttl_s: float, now: HostTime) -> bool:
    """Not run out, and not from before a restart of the host, which its boot id or too much time left shows."""
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
    return sorted((id for id, boot, until_s, ttl_s in rows if _alive(boot, until_s, ttl_s, now)), key=rank)


def _withdraw(transaction: Transaction, name: str, candidate: str) -> None:
    transaction.execute("DELETE FROM flyball_candidate WHERE lease = ? AND id = ?", (name, candidate))


def rank(id: str) -> list[str | int]:
    """The order of candidates: numbers inside an id count as numbers.

    >>> sorted(["node-10", "node-9", "node-9a"], key=rank)
    ['node-9', 'node-9a', 'node-10']
    """
    # split alternates text and digits, so equal places hold equal types
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", id))]
