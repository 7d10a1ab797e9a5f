"""The outbox: order, bounds, the application's own transaction, and nothing lost by kill -9 or a full disk."""

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


class Entry(NamedTuple):
    message: Message
    channel: str = "orders"
    urgency: int = 4


def messages(*names: str, urgency: int = 4) -> list[Entry]:
    return [Entry(Message(name.encode(), name), urgency=urgency) for name in names]


def ids(outbox: Outbox, limit: int = 100, urgency_step_s: float = 5.0) -> list[str]:
    return [pending.message.id for pending in outbox.take(limit, urgency_step_s=urgency_step_s)]


def lines(child: Popen[str]) -> Iterable[str]:
    assert child.stdout is not None
    return child.stdout


def start_all(threads: Sequence[threading.Thread], database: SqliteDatabase) -> None:
    for thread in threads:
        thread.start()
    while database._commits.waiting < len(threads):
        time.sleep(0.001)


def test_what_was_appended_comes_back_whole(database: SqliteDatabase) -> None:
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
    (pending,) = outbox.take(10)
    assert (pending.seq, pending.accepted_s, pending.message) == (seqs[0], 100.0, sent)
    assert (pending.channel, pending.urgency) == ("city.lyon", 0)
    assert type(pending.message.headers["yes"]) is bool


def test_taken_messages_are_not_taken_twice_until_given_back(database: SqliteDatabase) -> None:
    outbox = Outbox(database)
    seqs = outbox.append(messages("a", "b", "c", "d"))
    assert ids(outbox, 2) == ["a", "b"]
    outbox.give_back([seqs[0]])
    assert outbox.taken == 1
    assert ids(outbox) == ["a", "c", "d"]
    assert ids(outbox) == []


def test_confirmed_messages_are_gone_and_the_rest_is_sent_again_after_a_restart(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        seqs = outbox.append(messages("a", "b", "c"))
        outbox.take(10)
        outbox.confirm(seqs[:2])
        assert outbox.pending()[0] == 1
    with SqliteDatabase(path) as database:
        assert ids(Outbox(database)) == ["c"]


def test_sequence_numbers_grow_and_are_never_given_twice(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        first = outbox.append(messages("a", "b"))
        outbox.confirm(first)
    with SqliteDatabase(path) as database:
        assert Outbox(database).append(messages("c", "d")) == [first[-1] + 1, first[-1] + 2]


def test_urgent_ones_leave_first_and_low_classes_never_starve(database: SqliteDatabase) -> None:
    now = 0.0
    outbox = Outbox(database, clock=lambda: now)
    outbox.append(messages("low", urgency=2))
    for now in range(1, 20):
        outbox.append(messages(f"urgent at {now}", urgency=0))
    order = ids(outbox, urgency_step_s=5.0)
    # Class 2 may wait 2 · 5 s: it comes after the urgent ones accepted up to then, before all later ones.
    assert order.index("low") == order.index("urgent at 10") + (order.index("urgent at 10") < order.index("low"))
    assert order.index("urgent at 9") < order.index("low") < order.index("urgent at 11")


def test_order_within_a_class_survives_a_clock_that_goes_back(database: SqliteDatabase) -> None:
    times = iter([1000.0, 10.0, 500.0])
    outbox = Outbox(database, clock=lambda: next(times))
    for name in ("a", "b", "c"):
        outbox.append(messages(name))
    assert ids(outbox) == ["a", "b", "c"]


def test_the_bound_holds_for_every_process_and_nothing_is_accepted_by_halves(path: Path) -> None:
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


def test_a_full_disk_is_a_clear_error_and_keeps_what_was_accepted(path: Path) -> None:
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        database._writer.execute("PRAGMA max_page_count = 60")
        accepted: list[str] = []

        def fill() -> None:
            for number in range(1000):
                outbox.append([Entry(Message(b"x" * 1000, f"m{number}"))])
                accepted.append(f"m{number}")

        with pytest.raises(Full, match="free some space; what was accepted before is kept"):
            fill()
        assert 10 < len(accepted) < 1000
        # Still usable: confirming makes room.
        taken = outbox.take(5)
        outbox.confirm(pending.seq for pending in taken)
        outbox.append(messages("later"))
    with SqliteDatabase(path) as database:
        assert ids(Outbox(database), 2000) == [*accepted[5:], "later"]


def test_one_that_does_not_fit_does_not_fail_those_that_share_its_commit(database: SqliteDatabase) -> None:
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
    with pytest.raises(InvalidValue, match="not 'str'"):
        enqueue("store.db", "orders", Message(b"a"))


def test_bad_values_are_refused(database: SqliteDatabase) -> None:
    with pytest.raises(InvalidValue, match=r"0 \(most urgent\) to 9, got 10"):
        Outbox(database).append(messages("a", urgency=10))
    with pytest.raises(InvalidValue, match=r"0 \(most urgent\) to 9, got -1"):
        enqueue(database._writer, "orders", Message(b"a"), urgency=-1)
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
        stored = outbox.take(10_000)
        assert outbox.pending()[0] == len(accepted)
    assert sorted(pending.message.id for pending in stored) == sorted(accepted)
    # Each thread's messages are in its own order.
    place = {pending.message.id: pending.seq for pending in stored}
    for process in range(3):
        for thread in range(4):
            own = [place[f"p{process}-{thread}-{turn}-{i}"] for turn in range(10) for i in range(5)]
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
    assert len(stored) % 5 == 0, "a batch was accepted by halves"
    assert intact == "ok"
