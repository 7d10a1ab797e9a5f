"""The database: transactions, what is said when it fails, several processes, versions."""

from __future__ import annotations

import multiprocessing
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from flyball.errors import InvalidValue
from flyball.message import Message
from flyball.store import Busy, DiskFull, Documents, LoopStates, NewerSchema, Outbox, SqliteDatabase, StoreError
from flyball.store.protocol import Transaction
from flyball.store.schema import MIGRATIONS
from flyball.store.sqlite import is_database

VERSION_1 = Path(__file__).with_name("version_1.sql")


def test_failed_work_writes_nothing_and_raises_its_own_error(database: SqliteDatabase) -> None:
    class OwnError(Exception):
        pass

    def work(transaction: Transaction) -> None:
        transaction.execute("INSERT INTO flyball_loop_state VALUES ('half', '1')")
        raise OwnError

    with pytest.raises(OwnError):
        database.write(work)
    assert LoopStates(database).load("half") is None
    with pytest.raises(StoreError, match="NOT NULL"):
        database.write(lambda t: t.execute("INSERT INTO flyball_loop_state VALUES ('x', NULL)"))
    database.write(lambda t: t.execute("INSERT INTO flyball_loop_state VALUES ('whole', '1')"))
    assert LoopStates(database).load("whole") == 1


def test_work_of_many_threads_shares_commits(database: SqliteDatabase) -> None:
    commits: list[int] = []
    transact = database._transact

    def counted(jobs: object) -> None:
        commits.append(1)
        transact(jobs)  # type: ignore[arg-type]  # passed through

    database._transact = counted  # type: ignore[method-assign]  # counts, does not replace
    states = LoopStates(database)
    threads = [threading.Thread(target=states.save, args=(f"loop {i}", i)) for i in range(50)]

    def start_all() -> None:
        for thread in threads:
            thread.start()
        while database._commits.waiting < len(threads):
            time.sleep(0.001)

    database._commits.exclusively(start_all)
    for thread in threads:
        thread.join()
    assert len(commits) == 1
    assert [states.load(f"loop {i}") for i in range(50)] == list(range(50))


@pytest.mark.parametrize(("level", "flag"), [("power", 2), ("process", 1)])
def test_durable_writes_wait_for_the_disk_at_the_level_asked_for(path: Path, level: str, flag: int) -> None:
    with SqliteDatabase(path, durability=level) as database:  # type: ignore[arg-type]  # parametrized

        def synchronous(durable: bool) -> int:
            return int(database.write(lambda t: t.execute("PRAGMA synchronous").fetchone()[0], durable=durable))

        assert [synchronous(True), synchronous(False), synchronous(True)] == [flag, 1, flag]


def test_a_reader_sees_one_state_while_a_writer_goes_on(path: Path, database: SqliteDatabase) -> None:
    states = LoopStates(database)
    states.save("loop", 1)
    with SqliteDatabase(path) as other:

        def twice(transaction: Transaction) -> tuple[object, object]:
            query = "SELECT state FROM flyball_loop_state WHERE name = 'loop'"
            before = transaction.execute(query).fetchone()[0]
            states.save("loop", 2)
            return before, transaction.execute(query).fetchone()[0]

        assert other.read(twice) == ("1", "1")
        assert LoopStates(other).load("loop") == 2


def test_a_database_that_stays_locked_is_named(path: Path, database: SqliteDatabase) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        SqliteDatabase(path, busy_s=0.05) as impatient,
        pytest.raises(Busy, match=r"locked by another process for more than 0\.05 s"),
    ):
        LoopStates(impatient).save("loop", 1)
    holder.execute("ROLLBACK")
    LoopStates(database).save("loop", 1)
    holder.close()


def test_a_full_disk_is_named(database: SqliteDatabase) -> None:
    def fill(transaction: Transaction) -> None:
        transaction.execute("PRAGMA max_page_count = 1")  # SQLite never shrinks it below what there is
        for name in range(10_000):
            transaction.execute(
                "INSERT INTO flyball_loop_state (name, state) VALUES (?, ?)", (str(name), "x" * 1000)
            )

    with pytest.raises(DiskFull, match=r"disk full: .*free some space"):
        database.write(fill)


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    """An error of Python's own module, which has no code of SQLite's."""
    closed = SqliteDatabase(tmp_path / "closed.db")
    closed.close()
    with pytest.raises(StoreError, match="closed"):
        LoopStates(closed).load("loop")


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*check that its folder exists"):
        SqliteDatabase(tmp_path / "none" / "store.db")
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="is not a SQLite database"):
        SqliteDatabase(text)
    with pytest.raises(InvalidValue, match="path of a file"):
        SqliteDatabase(":memory:")
    with pytest.raises(InvalidValue, match="'power' or 'process', got 'none'"):
        SqliteDatabase(tmp_path / "x.db", durability="none")  # type: ignore[arg-type]  # the point of the test


def test_a_forked_child_must_open_it_again(database: SqliteDatabase) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def child() -> None:
        try:
            LoopStates(database).save("loop", 1)
            answers.put("saved")
        except StoreError as error:
            answers.put(str(error))

    process = context.Process(target=child)
    process.start()
    assert "open it again after the fork" in answers.get()
    process.join()


OPENER = """
import sys
sys.stdin.readline()
from flyball.store import LoopStates, SqliteDatabase
LoopStates(SqliteDatabase(sys.argv[1])).save(sys.argv[2], 1)
"""


def test_processes_may_create_the_same_file_at_once(path: Path, start_child: Callable[..., Popen[str]]) -> None:
    children = [start_child(OPENER, path, f"loop {number}") for number in range(4)]
    for child in children:
        assert child.stdin is not None
        print("go", file=child.stdin, flush=True)
    assert [child.wait() for child in children] == [0] * 4
    with SqliteDatabase(path) as database:
        assert [LoopStates(database).load(f"loop {number}") for number in range(4)] == [1] * 4


def test_a_file_of_version_1_opens_and_keeps_everything(path: Path) -> None:
    plain = sqlite3.connect(path)
    plain.executescript(VERSION_1.read_text())
    plain.close()
    with SqliteDatabase(path) as database:
        outbox = Outbox(database)
        assert [pending.message.id for pending in outbox.read(0, outbox.newest(), 10)] == ["first", "second"]
        assert outbox.pending() == (2, 170)
        assert outbox.append([]) == []
        assert LoopStates(database).load("prefetch") == {"integral": 0.5}
        document = Documents(database, "groups").get("g")
        assert document is not None
        assert (document.value, document.version) == ({"members": ["a"]}, 7)
        version = database.read(lambda t: t.execute("SELECT version FROM flyball_schema").fetchone()[0])
        assert version == len(MIGRATIONS)


def test_a_migration_changes_the_tables_and_keeps_the_rows(path: Path) -> None:
    with SqliteDatabase(path) as database:
        LoopStates(database).save("loop", 5)
    longer = (*MIGRATIONS, ("ALTER TABLE flyball_loop_state ADD COLUMN saved_s REAL DEFAULT 0.5",))
    for _ in range(2):  # the second opening has nothing left to do
        with SqliteDatabase(path, migrations=longer) as database:
            rows = database.read(lambda t: t.execute("SELECT * FROM flyball_loop_state").fetchall())
            assert rows == [("loop", "5", 0.5)]


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    with SqliteDatabase(path) as database:
        LoopStates(database).save("loop", 5)
    broken = (*MIGRATIONS, ("ALTER TABLE flyball_loop_state ADD COLUMN saved_s REAL", "NO SUCH STATEMENT"))
    with pytest.raises(StoreError, match="syntax error"):
        SqliteDatabase(path, migrations=broken)
    with SqliteDatabase(path) as database:
        rows = database.read(lambda t: t.execute("SELECT * FROM flyball_loop_state").fetchall())
        assert rows == [("loop", "5")]


def test_a_newer_version_is_refused(path: Path) -> None:
    longer = (*MIGRATIONS, ("CREATE TABLE flyball_new (x)",))
    SqliteDatabase(path, migrations=longer).close()
    known = len(MIGRATIONS)
    with pytest.raises(
        NewerSchema, match=f"has store version {known + 1}, this Flyball supports versions up to {known}"
    ):
        SqliteDatabase(path)


class _Entry(NamedTuple):
    message: Message
    channel: str = "orders"
    urgency: int = 4


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_file_that_is_deleted_or_replaced_takes_nothing_that_must_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteDatabase("outbox.db") as database:
        monkeypatch.chdir("/")  # a relative path stays the file's
        outbox = Outbox(database)
        (first,) = outbox.append([_Entry(Message(b"1"))])
        (tmp_path / "outbox.db").unlink()
        if replaced:
            SqliteDatabase(tmp_path / "outbox.db").close()
        with pytest.raises(StoreError, match="replaced by" if replaced else "was deleted"):
            outbox.append([_Entry(Message(b"2"))])
        if not replaced:  # what was accepted before can still be sent
            assert [each.message.body for each in outbox.read(0, 100, 10)] == [b"1"]
            outbox.confirm([first])


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not list its locks")
def test_to_ask_whether_a_file_is_a_database_releases_no_lock(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as application:
        application.execute("PRAGMA journal_mode = WAL")
        application.execute("BEGIN")
        application.execute("SELECT * FROM sqlite_schema").fetchall()

        def locks() -> list[str]:
            lines = Path("/proc/locks").read_text().splitlines()
            return [line.split(": ")[1] for line in lines if f":{path.stat().st_ino} " in line]

        before = locks()
        assert before
        assert is_database(path)
        assert locks() == before


def test_what_is_no_database(path: Path) -> None:
    path.write_text("a text that is long enough to be read as the start of a database file, and is none" * 10)
    assert not is_database(path)
    path.write_text("")
    assert is_database(path)
