"""Dead letters: moved in one transaction, counted, listed, replayed under new numbers, deleted."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

import pytest

from flyball.errors import InvalidValue
from flyball.message import Message
from flyball.store import DeadLetters, Full, Outbox, SqliteDatabase, StoreError
from flyball.store.dead_letters import Rejection, open_outbox_file


class Entry(NamedTuple):
    message: Message
    channel: str = "orders"
    urgency: int = 4


def ids(outbox: Outbox) -> list[str]:
    return [pending.message.id for pending in outbox.read(0, outbox.newest(), 100)]


def test_a_rejected_message_is_kept_whole_and_can_be_sent_again(database: SqliteDatabase) -> None:
    outbox, dead = Outbox(database, clock=lambda: 10.0), DeadLetters(database, clock=lambda: 20.0)
    sent = Message(b"\x00\xff", "bad", b"k", {"raw": b"\x01", "n": 1}, 1.5, "x/y")
    first, second = outbox.append([Entry(sent, "city.lyon", 7), Entry(Message(b"fine", "fine"))])
    dead.add([Rejection(first, "city.lyon at memory://", "too large")])
    assert ids(outbox) == ["fine"]
    (letter,) = dead.read_many()
    assert (letter.number, letter.message, letter.channel, letter.urgency) == (first, sent, "city.lyon", 7)
    assert (letter.accepted_s, letter.rejected_s) == (10.0, 20.0)
    assert (letter.target, letter.reason) == ("city.lyon at memory://", "too large")
    assert dead.read(first) == letter
    assert dead.replay([first]) == 1
    assert (dead.count(), dead.read_many()) == ((0, 0), [])
    again = outbox.read(second + 1, outbox.newest(), 10)
    assert [(pending.message, pending.channel, pending.urgency) for pending in again] == [(sent, "city.lyon", 7)]


def test_moving_twice_changes_nothing(database: SqliteDatabase) -> None:
    outbox, dead = Outbox(database), DeadLetters(database)
    (seq,) = outbox.append([Entry(Message(b"x", "bad"))])
    for _ in range(2):
        dead.add([Rejection(seq, "t", "r")])
    assert dead.count()[0] == 1
    dead.replay()
    dead.add([Rejection(seq, "t", "r")])
    assert (dead.count()[0], ids(outbox)) == (0, ["bad"])


def test_dead_letters_count_towards_the_limit_until_they_are_deleted(database: SqliteDatabase) -> None:
    outbox, dead = Outbox(database, max_bytes=2000), DeadLetters(database)
    (seq,) = outbox.append([Entry(Message(bytes(1200), "bad"))])
    size = outbox.pending()[1]
    dead.add([Rejection(seq, "t", "r")])
    assert (outbox.pending(), dead.count()) == ((0, 0), (1, size))
    with pytest.raises(Full, match="delete dead letters if there are any"):
        outbox.append([Entry(Message(bytes(1200), "next"))])
    assert dead.delete() == 1
    assert dead.count() == (0, 0)
    outbox.append([Entry(Message(bytes(1200), "next"))])
    assert outbox.pending() == (1, size + 1)


def test_numbers_that_are_no_dead_letters_are_named_and_nothing_changes(database: SqliteDatabase) -> None:
    outbox, dead = Outbox(database), DeadLetters(database)
    seqs = outbox.append([Entry(Message(b"x", f"m{n}")) for n in range(4)])
    dead.add([Rejection(seq, "t", "r") for seq in seqs[:3]])
    for change in (dead.replay, dead.delete):
        with pytest.raises(InvalidValue, match=f"there is no dead letter {seqs[3]}"):
            change([seqs[0], seqs[3]])
    with pytest.raises(InvalidValue, match="there is no dead letter 99"):
        dead.read(99)
    assert [letter.message.id for letter in dead.read_many(2)] == ["m0", "m1"]
    assert [letter.message.id for letter in dead.read_many(2, after=seqs[1])] == ["m2"]
    assert dead.delete([seqs[1], seqs[1]]) == 1
    assert dead.replay() == 2
    assert sorted(ids(outbox)) == ["m0", "m2", "m3"]


def test_a_row_that_is_no_message_can_be_read_and_says_why(path: Path, database: SqliteDatabase) -> None:
    insert = (
        "INSERT INTO flyball_outbox (id, channel, urgency, accepted_s, size_bytes, key, headers, body) "
        "VALUES (?, 'orders', 4, 0, 0, ?, ?, ?)"
    )
    with sqlite3.connect(path) as connection:
        connection.execute(insert, ("text", None, None, "text"))
        connection.execute(insert, ("key", "k", None, b""))
        connection.execute(insert, ("headers", None, "[1", b""))
    outbox, dead = Outbox(database), DeadLetters(database)
    rows = outbox.read(0, outbox.newest(), 10)
    assert [row.message.body for row in rows] == [b"text", b"", b""]
    assert all(row.problem is not None and repr(row.message.id) in row.problem for row in rows)
    dead.add([Rejection(row.seq, "", str(row.problem)) for row in rows])
    assert [letter.message.id for letter in dead.read_many()] == ["text", "key", "headers"]


def test_only_a_file_with_an_outbox_is_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        open_outbox_file(tmp_path / "none.db")
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
    with pytest.raises(StoreError, match=r"other\.db has no outbox"):
        open_outbox_file(tmp_path / "other.db")
    (tmp_path / "notes.txt").write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="is not a SQLite database"):
        open_outbox_file(tmp_path / "notes.txt")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "other.db"]
