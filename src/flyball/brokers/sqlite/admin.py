"""Which channels and outlets a SQLite broker has: declare, look up, remove; in the caller's transaction."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name, matches
from flyball.brokers.port import ChannelInfo, Kind, Start, Unsupported, no_such_channel


@dataclass(frozen=True, slots=True)
class Channel:
    id: int
    name: str
    kind: Kind
    partitions: int
    max_bytes: int | None
    retention_s: float | None


class Topology:
    """Reads the few rows that describe channels and outlets again only when a counter says they changed."""

    def __init__(self) -> None:
        self._changes = -1
        self._channels: dict[str, Channel] = {}
        self._patterns: list[tuple[int, str]] = []
        self._outlets: dict[int, list[int]] = {}

    def refresh(self, db: sqlite3.Connection) -> None:
        (changes,) = db.execute("SELECT changes FROM broker_topology").fetchone()
        if changes == self._changes:
            return
        rows = db.execute("SELECT id, name, kind, partitions, max_bytes, retention_s FROM broker_channels")
        self._channels = {row[1]: Channel(*row) for row in rows}
        self._patterns = list(db.execute("SELECT id, pattern FROM broker_outlets"))
        self._outlets.clear()
        self._changes = changes

    def channel(self, db: sqlite3.Connection, name: str) -> Channel:
        check_name(name)
        self.refresh(db)
        if name not in self._channels:
            raise no_such_channel("queue or log", name, "in this SQLite file")
        return self._channels[name]

    def channels(self, db: sqlite3.Connection) -> list[Channel]:
        self.refresh(db)
        return sorted(self._channels.values(), key=lambda channel: channel.name)

    def outlets(self, channel: Channel) -> list[int]:
        """The outlets that get what is sent to the channel (as of the last refresh)."""
        if channel.id not in self._outlets:
            self._outlets[channel.id] = [id for id, pattern in self._patterns if matches(pattern, channel.name)]
        return self._outlets[channel.id]

    def declare(self, db: sqlite3.Connection, wanted: ChannelSpec) -> None:
        self.refresh(db)
        existing = self._channels.get(wanted.name)
        if existing is not None:
            wanted.check_fits(existing.kind, existing.partitions)
            return
        channel_id = db.execute(
            "INSERT INTO broker_channels (name, kind, partitions, max_bytes, retention_s) VALUES (?, ?, ?, ?, ?)",
            (wanted.name, wanted.kind, wanted.partitions, wanted.max_bytes, wanted.retention_s),
        ).lastrowid
        db.executemany(
            "INSERT INTO broker_partitions VALUES (?, ?, 0, 0, 0)",
            [(channel_id, at) for at in range(wanted.partitions)],
        )
        if wanted.kind == "queue":
            db.execute("INSERT INTO broker_outlets (pattern, member_group) VALUES (?, NULL)", (wanted.name,))
        _changed(db)

    def queue_outlet(self, db: sqlite3.Connection, queue: str) -> int:
        channel = self.channel(db, queue)
        if channel.kind != "queue":
            raise Unsupported(f"{queue!r} is a log, not a queue: read it, or subscribe a group to it")
        row = db.execute(
            "SELECT id FROM broker_outlets WHERE pattern = ? AND member_group IS NULL", (queue,)
        ).fetchone()
        return int(row[0])

    def group_outlet(self, db: sqlite3.Connection, pattern: str, group: str, start: Start) -> int:
        matches(pattern, check_name(group))  # check both before anything is created
        self.refresh(db)
        existing = db.execute(
            "SELECT id FROM broker_outlets WHERE pattern = ? AND member_group = ?", (pattern, group)
        ).fetchone()
        if existing is not None:
            return int(existing[0])
        outlet_id = db.execute(
            "INSERT INTO broker_outlets (pattern, member_group) VALUES (?, ?)", (pattern, group)
        ).lastrowid
        assert outlet_id is not None
        _changed(db)
        if start == "earliest":
            for channel in self._channels.values():
                if channel.kind == "log" and matches(pattern, channel.name):
                    _enqueue_all(db, outlet_id, channel)
        return outlet_id

    def outlets_on(self, db: sqlite3.Connection, name: str) -> list[int]:
        """The outlets on just this name: the queue's own, and those of groups."""
        return [id for (id,) in db.execute("SELECT id FROM broker_outlets WHERE pattern = ?", (check_name(name),))]

    def delete(self, db: sqlite3.Connection, name: str) -> None:
        self.refresh(db)
        channel = self._channels.get(check_name(name))
        if channel is None:
            return
        batches = "(SELECT id FROM broker_batches WHERE channel = ?)"
        for outlet in self.outlets(channel):
            db.execute(f"DELETE FROM broker_waiting WHERE outlet = ? AND batch IN {batches}", (outlet, channel.id))
            db.execute("DELETE FROM broker_backlogs WHERE outlet = ? AND channel = ?", (outlet, channel.id))
            db.execute(
                "DELETE FROM broker_claimed WHERE receiver IN (SELECT id FROM broker_receivers WHERE outlet = ?) "
                f"AND batch IN {batches}",
                (outlet, channel.id),
            )
        db.execute(f"DELETE FROM broker_payloads WHERE batch IN {batches}", (channel.id,))
        for table in ("broker_batches", "broker_partitions", "broker_producers"):
            db.execute(f"DELETE FROM {table} WHERE channel = ?", (channel.id,))
        db.execute("DELETE FROM broker_channels WHERE id = ?", (channel.id,))
        # Groups on just this name go too, except those with members: these get what a channel made anew is sent.
        db.execute(
            "DELETE FROM broker_receivers WHERE outlet IN "
            "(SELECT id FROM broker_outlets WHERE pattern = ? AND member_group IS NULL)",
            (name,),
        )
        db.execute(
            "DELETE FROM broker_outlets WHERE pattern = ? AND id NOT IN (SELECT outlet FROM broker_receivers)",
            (name,),
        )
        _changed(db)

    def depth(self, db: sqlite3.Connection, name: str, group: str | None) -> int:
        channel = self.channel(db, name)
        if group is not None:
            (count,) = db.execute(
                "SELECT coalesce(sum(unsettled), 0) FROM broker_backlogs JOIN broker_outlets ON id = outlet "
                "WHERE channel = ? AND member_group = ?",
                (channel.id, group),
            ).fetchone()
        elif channel.kind == "queue":
            (count,) = db.execute(
                "SELECT coalesce(sum(waiting), 0) FROM broker_backlogs WHERE outlet = ? AND channel = ?",
                (self.queue_outlet(db, name), channel.id),
            ).fetchone()
        else:
            (count,) = db.execute(
                "SELECT sum(next_offset - first_offset) FROM broker_partitions WHERE channel = ?", (channel.id,)
            ).fetchone()
        return int(count)

    def oldest_age_s(self, db: sqlite3.Connection, name: str) -> float | None:
        channel = self.channel(db, name)
        if channel.kind == "queue":
            batch = db.execute(
                "SELECT batch FROM broker_waiting WHERE outlet = ? ORDER BY batch LIMIT 1",
                (self.queue_outlet(db, name),),
            ).fetchone()
            oldest = [batch[0]] if batch else []
        else:
            oldest = [
                row[0]
                for partition in range(channel.partitions)
                for row in db.execute(
                    "SELECT id FROM broker_batches WHERE channel = ? AND partition = ? "
                    "ORDER BY first_offset LIMIT 1",
                    (channel.id, partition),
                )
            ]
        stored = [
            db.execute("SELECT stored_s FROM broker_batches WHERE id = ?", (batch,)).fetchone()[0]
            for batch in oldest
        ]
        return max((time.time() - at for at in stored), default=None)

    def list(self, db: sqlite3.Connection) -> list[ChannelInfo]:
        return [
            ChannelInfo(
                channel.name,
                channel.kind,
                channel.partitions,
                self.depth(db, channel.name, None),
                self.oldest_age_s(db, channel.name),
            )
            for channel in self.channels(db)
        ]


def _changed(db: sqlite3.Connection) -> None:
    db.execute("UPDATE broker_topology SET changes = changes + 1")


def _enqueue_all(db: sqlite3.Connection, outlet: int, channel: Channel) -> None:
    """Make every batch of a log wait for a group that begins at the start of it."""
    db.execute(
        "INSERT INTO broker_waiting SELECT ?, id, 0, count, 0 FROM broker_batches WHERE channel = ?",
        (outlet, channel.id),
    )
    db.execute(
        "INSERT INTO broker_backlogs SELECT ?1, ?2, total, total FROM "
        "(SELECT sum(next_offset - first_offset) AS total FROM broker_partitions WHERE channel = ?2)",
        (outlet, channel.id),
    )
