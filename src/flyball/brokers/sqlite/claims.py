"""Which receiver has which messages of an outlet: claims, acknowledgements, returns, and leases.

A receiver is a row with a lease that its process renews. Its number is the token of its claims: when the lease
runs out or the process has ended, the row is deleted and its ranges wait again, so a receiver that was paused
meanwhile finds its number deleted and cannot acknowledge what another one has claimed. Numbers are never reused.

Leases are measured on the machine's monotonic clock, which all its processes share and which is never set; after a
restart of the machine (another boot id) every older lease is void.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from flyball.brokers.sqlite.append import remove_batch


class Range(NamedTuple):
    """Part of a batch that was claimed; `attempts` counts this delivery too."""

    batch: int
    low: int
    high: int
    attempts: int


class LeaseExpired(Exception):
    """The receiver's lease had run out: others may have claimed its messages."""


def machine() -> str:
    """This boot of this machine and its namespace of process numbers (containers have their own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "one"  # no Linux: leases alone decide


def register(db: sqlite3.Connection, outlet: int, lease_s: float) -> int:
    receiver_id = db.execute(
        "INSERT INTO broker_receivers (outlet, machine, process, alive_until_s) VALUES (?, ?, ?, ?)",
        (outlet, machine(), os.getpid(), time.monotonic() + lease_s),
    ).lastrowid
    assert receiver_id is not None
    return receiver_id


def renew(db: sqlite3.Connection, receivers: Iterable[int], lease_s: float) -> None:
    until = time.monotonic() + lease_s
    db.executemany(
        "UPDATE broker_receivers SET alive_until_s = ? WHERE id = ?", [(until, receiver) for receiver in receivers]
    )


def expired_receivers(db: sqlite3.Connection, outlet: int) -> list[int]:
    """Receivers of an outlet whose lease has run out or whose process has ended."""
    here, now = machine(), time.monotonic()
    return [
        receiver
        for receiver, there, process, until in db.execute(
            "SELECT id, machine, process, alive_until_s FROM broker_receivers WHERE outlet = ?", (outlet,)
        )
        if until < now or there.split()[0] != here.split()[0] or (there == here and not _runs(process))
    ]


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_receiver(db: sqlite3.Connection, receiver: int) -> None:
    """Delete a receiver; what it had claimed waits again."""
    row = db.execute("DELETE FROM broker_receivers WHERE id = ? RETURNING outlet", (receiver,)).fetchone()
    if row is None:
        return
    claims = db.execute(
        "DELETE FROM broker_claimed WHERE receiver = ? RETURNING batch, low, high, attempts", (receiver,)
    ).fetchall()
    _requeue(db, row[0], [Range(*claim) for claim in claims])


def has_waiting(db: sqlite3.Connection, outlet: int) -> bool:
    return db.execute("SELECT 1 FROM broker_waiting WHERE outlet = ? LIMIT 1", (outlet,)).fetchone() is not None


def claim(db: sqlite3.Connection, receiver: int, outlet: int, limit: int, check_expired: bool) -> list[Range]:
    """Claim up to `limit` messages for a receiver, oldest first."""
    _check_lease(db, receiver)
    if check_expired:
        for expired in expired_receivers(db, outlet):
            if expired != receiver:
                remove_receiver(db, expired)
    claimed: list[Range] = []
    left = limit
    for batch, low, high, attempts in db.execute(
        "SELECT batch, low, high, attempts FROM broker_waiting WHERE outlet = ? ORDER BY batch, low LIMIT ?",
        (outlet, limit),
    ).fetchall():
        if left == 0:
            break
        db.execute("DELETE FROM broker_waiting WHERE outlet = ? AND batch = ? AND low = ?", (outlet, batch, low))
        cut = min(high, low + left)
        if cut < high:
            db.execute("INSERT INTO broker_waiting VALUES (?, ?, ?, ?, ?)", (outlet, batch, cut, high, attempts))
        db.execute("INSERT INTO broker_claimed VALUES (?, ?, ?, ?, ?)", (receiver, batch, low, cut, attempts + 1))
        claimed.append(Range(batch, low, cut, attempts + 1))
        left -= cut - low
    for channel, count in _by_channel(db, claimed).items():
        db.execute(
            "UPDATE broker_backlogs SET waiting = waiting - ? WHERE outlet = ? AND channel = ?",
            (count, outlet, channel),
        )
    return claimed


def settle(db: sqlite3.Connection, receiver: int, outlet: int, spans: Sequence[tuple[int, int, int]]) -> None:
    """Acknowledge (batch, low, high) spans; a queue's batch that no outlet needs any more is removed."""
    _check_lease(db, receiver)
    _settle_parts(db, outlet, _unclaim(db, receiver, spans))


def return_spans(
    db: sqlite3.Connection, receiver: int, outlet: int, spans: Sequence[tuple[int, int, int]]
) -> None:
    """Return spans, which wait again at their old position."""
    _check_lease(db, receiver)
    _requeue(db, outlet, _unclaim(db, receiver, spans))


def purge(db: sqlite3.Connection, outlet: int) -> int:
    """Drop what waits at an outlet; the number of messages dropped."""
    purged = [
        Range(*row)
        for row in db.execute(
            "DELETE FROM broker_waiting WHERE outlet = ? RETURNING batch, low, high, attempts", (outlet,)
        ).fetchall()
    ]
    for channel, count in _by_channel(db, purged).items():
        db.execute(
            "UPDATE broker_backlogs SET waiting = waiting - ? WHERE outlet = ? AND channel = ?",
            (count, outlet, channel),
        )
    _settle_parts(db, outlet, purged)
    return sum(part.high - part.low for part in purged)


def is_registered(db: sqlite3.Connection, receiver: int) -> bool:
    return db.execute("SELECT 1 FROM broker_receivers WHERE id = ?", (receiver,)).fetchone() is not None


def _check_lease(db: sqlite3.Connection, receiver: int) -> None:
    if not is_registered(db, receiver):
        raise LeaseExpired


def _unclaim(db: sqlite3.Connection, receiver: int, spans: Sequence[tuple[int, int, int]]) -> list[Range]:
    """Take spans out of a receiver's claims, splitting claims that are only partly named."""
    released = []
    for batch, low, high in spans:
        for start, end, attempts in db.execute(
            "SELECT low, high, attempts FROM broker_claimed "
            "WHERE receiver = ? AND batch = ? AND low < ? AND high > ?",
            (receiver, batch, high, low),
        ).fetchall():
            db.execute(
                "DELETE FROM broker_claimed WHERE receiver = ? AND batch = ? AND low = ?", (receiver, batch, start)
            )
            for rest_low, rest_high in ((start, min(low, end)), (max(high, start), end)):
                if rest_low < rest_high:
                    db.execute(
                        "INSERT INTO broker_claimed VALUES (?, ?, ?, ?, ?)",
                        (receiver, batch, rest_low, rest_high, attempts),
                    )
            released.append(Range(batch, max(start, low), min(end, high), attempts))
    return released


def _settle_parts(db: sqlite3.Connection, outlet: int, parts: Sequence[Range]) -> None:
    """Count parts as settled by the outlet; remove batches that every outlet has settled."""
    for channel, count in _by_channel(db, parts).items():
        db.execute(
            "UPDATE broker_backlogs SET unsettled = unsettled - ? WHERE outlet = ? AND channel = ?",
            (count, outlet, channel),
        )
    settled: dict[int, int] = {}
    for part in parts:
        settled[part.batch] = settled.get(part.batch, 0) + part.high - part.low
    for batch, count in settled.items():
        # `owed` is 0 from the start in a log, so its batches never match.
        row = db.execute(
            "UPDATE broker_batches SET owed = owed - ? WHERE id = ? AND owed > 0 "
            "RETURNING owed, channel, bytes, count",
            (count, batch),
        ).fetchone()
        if row is not None and row[0] <= 0:
            remove_batch(db, batch)
            db.execute(
                "UPDATE broker_partitions SET bytes = bytes - ?, first_offset = first_offset + ? "
                "WHERE channel = ? AND partition = 0",
                (row[2], row[3], row[1]),
            )


def _requeue(db: sqlite3.Connection, outlet: int, parts: Sequence[Range]) -> None:
    db.executemany("INSERT INTO broker_waiting VALUES (?, ?, ?, ?, ?)", [(outlet, *part) for part in parts])
    for channel, count in _by_channel(db, parts).items():
        db.execute(
            "UPDATE broker_backlogs SET waiting = waiting + ? WHERE outlet = ? AND channel = ?",
            (count, outlet, channel),
        )


def _by_channel(db: sqlite3.Connection, parts: Sequence[Range]) -> dict[int, int]:
    """Messages of the ranges by channel. (Retention removes a batch together with its ranges.)"""
    counts: dict[int, int] = {}
    for part in parts:
        (channel,) = db.execute("SELECT channel FROM broker_batches WHERE id = ?", (part.batch,)).fetchone()
        counts[channel] = counts.get(channel, 0) + part.high - part.low
    return counts
