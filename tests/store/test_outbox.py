"""The outbox: order, limits, the application's own transaction, and no loss by kill -9 or a full disk."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from flyball.errors import InvalidValue
from flyball.message import Message
from flyball.store import Full, Outbox, SqliteDatabase, StoreError, enqueue
from flyball.testing.contract.messages import unfit_messages


class Entry(NamedTuple):
    message: Message
    channel: str = "orders"
    urgency: int = 4


def messages(*names: str, urgency: int = 4) -> list[Entry]:
    return [Entry(Message(name.encode(), name), urgency=urgency) for name in names]


def ids(outbox: Outbox, limit: int = 100) -> list[str]:
    return [pending.message.id for pending in outbox.read(0, outbox.newest(), limit)]


def lines(child: Popen[str]) -> Iterable[str]:
    assert child.stdout is not None
    return child.stdout


def start_all(threads: Sequence[threading.Thread], database: SqliteDatabase) -> None:
    for thread in threads:
        thread.start()
    while database._commits.waiting < len(threads):
        time.sleep(0.001)


def test_a_message_is_read_as_it_was_appended(database: SqliteDatabase) -> None:
    sent = Message(
        id="1",
        body=b"\x00\xff",
        key=b"\xfe",
        headers={"text": "é", "whole": 1, "real": 0.5, "yes": True, "raw": b"\x00\x01"},
        event_time_s=12.25,
        content_type="application/json",
    )
    outbox = Outbox(database, clock=lambda: 100.0)
    seqs = outbox.append([Entry(sent, "city.lyon", 0)])
    (pending,) = outbox.read(0, seqs[0], 10)
    assert (pending.seq, pending.accepted_s, pending.message) == (seqs[0], 100.0, sent)
    assert (pending.channel, pending.urgency) == ("city.lyon", 0)
    assert type(pending.message.headers["yes"]) is bool


def test_a_range_of_sequence_numbers_is_read_in_order(database: SqliteDatabase) -> None:
    outbox = Outbox(database)
    seqs = outbox.append(messages("a", "b", "c", "d"))
    assert ids(outbox, 2) == ["a", "b"]
    assert [pending.message.id for pending in outbox.read(seqs[1], seqs[2], 10)] == ["b", "c"]
    assert outbox.read(seqs[-1] + 1, seqs[-1] + 10, 10) == []


def test_confirmed_messages_are_removed_and_the_rest_is_there_after_a_restart(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        seqs = outbox.append(messages("a", "b", "c"))
        outbox.confirm(seqs[:2])
        assert outbox.pending()[0] == 1
    with SqliteDatabase(path) as database:
        assert ids(Outbox(database)) == ["c"]


def test_sequence_numbers_grow_and_are_never_used_twice(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        first = outbox.append(messages("a", "b"))
        outbox.confirm(first)
    with SqliteDatabase(path) as database:
        assert Outbox(database).append(messages("c", "d")) == [first[-1] + 1, first[-1] + 2]


def test_order_survives_a_clock_that_goes_back(database: SqliteDatabase) -> None:
    times = iter([1000.0, 10.0, 500.0])
    outbox = Outbox(database, clock=lambda: next(times))
    for name in ("a", "b", "c"):
        outbox.append(messages(name))
    assert ids(outbox) == ["a", "b", "c"]


def test_the_limit_holds_for_every_process_and_no_batch_is_accepted_in_part(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database, max_bytes=1000)
        seqs = outbox.append(messages("a"))
        big = Message(b"x" * 990, "big")
        with pytest.raises(Full, match="at most 1000 bytes"):
            outbox.append([*messages("b"), Entry(big)])
        application = sqlite3.connect(path)
        with pytest.raises(Full, match="raise max_bytes"):
            enqueue(application, "orders", big)
        application.close()
        assert ids(outbox) == ["a"]
        outbox.confirm(seqs)
        assert outbox.pending() == (0, 0)
        outbox.append(messages("b"))
        assert ids(outbox) == ["b"]


def test_a_full_disk_is_a_clear_error_and_loses_no_accepted_message(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        database._writer.execute("PRAGMA max_page_count = 60")
        accepted: list[str] = []

        def fill() -> None:
            for number in range(1000):
                outbox.append([Entry(Message(b"x" * 1000, f"m{number}"))])
                accepted.append(f"m{number}")

        with pytest.raises(Full, match="free some space; accepted messages are safe"):
            fill()
        assert 10 < len(accepted) < 1000
        # Still usable: confirming frees space.
        first = outbox.read(0, outbox.newest(), 5)
        outbox.confirm(pending.seq for pending in first)
        outbox.append(messages("later"))
    with SqliteDatabase(path) as database:
        assert ids(Outbox(database), 2000) == [*accepted[5:], "later"]


def test_a_message_that_does_not_fit_does_not_fail_others_in_the_same_commit(database: SqliteDatabase) -> None:
    outbox = Outbox(database, max_bytes=100_000)
    outcome: dict[str, object] = {}

    def append(name: str, size: int) -> None:
        try:
            outcome[name] = outbox.append([Entry(Message(b"x" * size, name))])
        except Full as error:
            outcome[name] = error

    threads = [threading.Thread(target=append, args=(f"small {i}", 10)) for i in range(20)]
    threads.insert(10, threading.Thread(target=append, args=("huge", 200_000)))
    # All wait while something else runs, so that they share commits.
    database._commits.exclusively(lambda: start_all(threads, database))
    for thread in threads:
        thread.join()
    assert isinstance(outcome.pop("huge"), Full)
    assert sorted(ids(outbox)) == sorted(outcome)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", ["sqlite3", "sqlalchemy connection", "sqlalchemy session"])
def test_the_message_exists_if_and_only_if_the_application_commits(path: Path, kind: str, commit: bool) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        outbox.append(messages("before"))
        _in_application(path, kind, commit)
        assert ids(outbox) == (["before", "order 7", "order 8"] if commit else ["before"])
        rows = database.read(lambda t: t.execute("SELECT count(*) FROM orders").fetchone()[0])
        assert rows == (1 if commit else 0)


def _in_application(path: Path, kind: str, commit: bool) -> None:
    plain = sqlite3.connect(path)
    plain.execute("CREATE TABLE orders (number INTEGER)")
    plain.commit()
    if kind == "sqlite3":
        plain.execute("INSERT INTO orders VALUES (7)")
        enqueue(plain, "orders", Message(b"order 7", "order 7"), Message(b"order 8", "order 8"))
        plain.commit() if commit else plain.rollback()
        plain.close()
        return
    plain.close()
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    opened: sqlalchemy.Connection | Session
    opened = engine.connect() if kind == "sqlalchemy connection" else Session(engine)
    with opened:
        opened.execute(sqlalchemy.text("INSERT INTO orders VALUES (7)"))
        enqueue(opened, "orders", Message(b"order 7", "order 7"), Message(b"order 8", "order 8"))
        opened.commit() if commit else opened.rollback()
    engine.dispose()


def test_a_database_without_outbox_is_named(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(StoreError, match=r"has no outbox: open it once with flyball\.store\.SqliteDatabase"):
        enqueue(connection, "orders", Message(b"a"))
    connection.close()
    with pytest.raises(InvalidValue, match="got 'str'"):
        enqueue("store.db", "orders", Message(b"a"))


def test_bad_values_are_refused(database: SqliteDatabase) -> None:
    pending = Outbox(database).pending()
    with pytest.raises(InvalidValue, match=r"0 \(most urgent\) to 9, got 10"):
        Outbox(database).append(messages("a", urgency=10))
    with pytest.raises(InvalidValue, match=r"0 \(most urgent\) to 9, got -1"):
        enqueue(database._writer, "orders", Message(b"a"), urgency=-1)
    for urgency in (1.5, "4", None):
        with pytest.raises(InvalidValue, match="urgency must be an integer, got "):
            enqueue(database._writer, "orders", Message(b"a"), urgency=urgency)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="invalid channel name 'no such/name'"):
        enqueue(database._writer, "no such/name", Message(b"a"))
    for unfit in unfit_messages():
        with pytest.raises(InvalidValue, match="must"):
            enqueue(database._writer, "orders", Message(b"fit"), unfit)
    assert Outbox(database).pending() == pending
    with pytest.raises(InvalidValue, match="max_bytes must be an integer >= 1, got 0"):
        Outbox(database, max_bytes=0)


WRITER = """
import sys, threading
from types import SimpleNamespace
from flyball.message import Message
from flyball.store import Outbox, SqliteDatabase
path, name, threads, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
outbox = Outbox(SqliteDatabase(path))
say = threading.Lock()
def work(number):
    for round in range(rounds):
        names = [f"{name}-{number}-{round}-{i}" for i in range(5)]
        messages = [Message(b"x" * 300, n) for n in names]
        outbox.append([SimpleNamespace(channel="orders", urgency=4, message=m) for m in messages])
        with say:
            print(*names, sep="\\n", flush=True)
workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
"""


def test_several_threads_and_processes_append_at_once(path: Path, start_child: Callable[..., Popen[str]]) -> None:
    children = [start_child(WRITER, path, f"p{number}", 4, 10) for number in range(3)]
    accepted = [line.strip() for child in children for line in lines(child)]
    assert len(accepted) == 3 * 4 * 10 * 5
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        stored = outbox.read(0, outbox.newest(), 10_000)
        assert outbox.pending()[0] == len(accepted)
    assert sorted(pending.message.id for pending in stored) == sorted(accepted)
    # Each thread's messages are in its own order.
    seq_of = {pending.message.id: pending.seq for pending in stored}
    for process in range(3):
        for thread in range(4):
            own = [seq_of[f"p{process}-{thread}-{turn}-{i}"] for turn in range(10) for i in range(5)]
            assert own == sorted(own)


@pytest.mark.parametrize("seed", range(6))
def test_kill_9_of_the_writer_keeps_every_accepted_message(
    path: Path, start_child: Callable[..., Popen[str]], seed: int
) -> None:
    random_stop = random.Random(seed).randrange(1, 400)
    child = start_child(WRITER, path, "victim", 3, 100_000)
    acknowledged = [line.strip() for line in islice(lines(child), random_stop)]
    child.kill()
    acknowledged += [line.strip() for line in lines(child) if line.endswith("\n")]
    with SqliteDatabase(path) as database:
        stored = ids(Outbox(database), 1_000_000)
        intact = database.read(lambda t: t.execute("PRAGMA integrity_check").fetchone()[0])
    assert set(acknowledged) <= set(stored), f"seed {seed}"
    assert len(stored) == len(set(stored))
    assert len(stored) % 5 == 0, "a batch was accepted in part"
    assert intact == "ok"


def test_a_part_ends_with_the_message_that_reaches_the_bytes(database: SqliteDatabase) -> None:
    outbox = Outbox(database)
    seqs = outbox.append([Entry(Message(bytes(1000), f"m{number}")) for number in range(5)])
    rows, read_to = outbox.read_part(seqs[0], seqs[-1], 10, 2000)
    assert ([row.message.id for row in rows], read_to) == (["m0", "m1"], seqs[1])
    rows, read_to = outbox.read_part(seqs[2], seqs[-1], 10, 1)
    assert ([row.message.id for row in rows], read_to) == (["m2"], seqs[2])
    rows, read_to = outbox.read_part(seqs[0], seqs[-1] + 7, 10, 1 << 20)
    assert (len(rows), read_to) == (5, seqs[-1] + 7)
    rows, read_to = outbox.read_part(seqs[0], seqs[-1], 3, 1 << 20)
    assert (len(rows), read_to) == (3, seqs[2])
    assert outbox.read_part(seqs[-1] + 1, seqs[-1] + 7, 3, 1) == ([], seqs[-1] + 7)
