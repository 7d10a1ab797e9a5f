"""The store on PostgreSQL: it goes on after outages, every call ends, and errors are one sentence."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from flyball.errors import InvalidValue
from flyball.servers.postgresql import PostgresqlServer
from flyball.servers.proxy import FaultProxy
from flyball.store import Busy, Documents, LoopStates, NewerSchema, StoreError, open_database
from flyball.store.postgresql import PostgresqlDatabase
from flyball.store.protocol import Transaction
from tests.postgresql_databases import empty_database, started_postgresql


@pytest.fixture
def url(postgresql: PostgresqlServer) -> str:
    return empty_database(postgresql)


@pytest.fixture(scope="module")
def own_postgresql() -> Iterator[PostgresqlServer]:
    yield from started_postgresql()


def test_an_idle_connection_survives_restart_and_kill_of_the_server(own_postgresql: PostgresqlServer) -> None:
    with closing(open_database(empty_database(own_postgresql))) as database:
        documents = Documents(database, "groups")
        documents.put("g", 1)
        own_postgresql.restart()
        assert documents.put("g", 2).version == 2
        own_postgresql.kill()
        with pytest.raises(StoreError, match=r"PostgreSQL at 127\.0\.0\.1:\d+: .*refused"):
            documents.put("g", 3)
        own_postgresql.start()
        document = documents.get("g")
        assert document is not None
        assert document.value == 2


def test_a_call_ends_when_nothing_is_answered_and_the_next_one_goes_on(
    postgresql: PostgresqlServer, url: str
) -> None:
    with (
        FaultProxy(postgresql.port) as proxy,
        PostgresqlDatabase(url.replace(str(postgresql.port), str(proxy.port)), answer_timeout_s=0.5) as database,
    ):
        documents = Documents(database, "groups")
        documents.put("g", 1)
        proxy.stall()
        with pytest.raises(StoreError):
            documents.put("g", 2)
        proxy.flow()
        documents.put("g", 3)
        document = documents.get("g")
        assert document is not None
        assert document.value == 3


def test_a_connection_cut_in_the_middle_of_a_transaction_writes_nothing(
    postgresql: PostgresqlServer, url: str
) -> None:
    with FaultProxy(postgresql.port) as proxy:
        through = url.replace(str(postgresql.port), str(proxy.port))
        with PostgresqlDatabase(through) as database:
            tries = []

            def write_and_cut(transaction: Transaction) -> None:
                tries.append(1)
                transaction.execute("INSERT INTO flyball_loop_state VALUES ('a', 'b')")
                proxy.cut()
                transaction.execute("SELECT 1")

            with pytest.raises(StoreError, match="PostgreSQL at"):
                database.write(write_and_cut)
            assert len(tries) == 1
            rows = database.read(lambda t: t.execute("SELECT count(*) FROM flyball_loop_state").fetchone())
            assert rows[0] == 0


def test_a_writer_that_waits_too_long_for_another_is_told(url: str) -> None:
    with PostgresqlDatabase(url) as first, PostgresqlDatabase(url, answer_timeout_s=0.2) as second:

        def write_beside(_: Transaction) -> None:
            with pytest.raises(Busy, match=r"locked by another writer for more than 0\.2 s"):
                second.write(lambda _: None)

        first.write(write_beside)
        Documents(second, "groups").put("g", 1)


def test_an_error_of_the_work_rolls_back_and_passes_through(url: str) -> None:
    with PostgresqlDatabase(url) as database:

        def fail(transaction: Transaction) -> None:
            transaction.execute("INSERT INTO flyball_loop_state VALUES ('a', 'b')")
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            database.write(fail)
        with pytest.raises(StoreError, match="no_such_table"):
            database.read(lambda t: t.execute("SELECT * FROM no_such_table"))
        assert database.read(lambda t: t.execute("SELECT * FROM flyball_loop_state").fetchall()) == []


def test_readers_see_one_state_and_cannot_write(url: str) -> None:
    with PostgresqlDatabase(url) as database, PostgresqlDatabase(url) as other:

        def read_twice(transaction: Transaction) -> list[int]:
            counts = []
            for name in ("a", "b"):
                counts.append(transaction.execute("SELECT count(*) FROM flyball_loop_state").fetchone()[0])
                LoopStates(other).save(name, {})
            return counts

        assert database.read(read_twice) == [0, 0]
        with pytest.raises(StoreError, match="read-only"):
            database.read(lambda t: t.execute("DELETE FROM flyball_loop_state"))


def test_values_with_signs_of_both_dialects(url: str) -> None:
    with PostgresqlDatabase(url) as database:
        documents = Documents(database, "100 % ?")
        documents.put("%s ?", {"?": "%", "nul": "\0", "lone": "\ud800"})
        document = documents.get("%s ?")
        assert document is not None
        assert document.value == {"?": "%", "nul": "\0", "lone": "\ud800"}


def test_a_child_of_a_fork_may_not_use_it(url: str) -> None:
    with PostgresqlDatabase(url) as database:
        child = os.fork()
        if child == 0:
            try:
                database.write(lambda _: None)
            except StoreError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        Documents(database, "groups").put("g", 1)


def test_tables_of_a_newer_version_are_refused(url: str) -> None:
    with PostgresqlDatabase(url) as database:
        database.write(lambda t: t.execute("UPDATE flyball_schema SET version = 99"))
    with pytest.raises(NewerSchema, match="has store version 99"):
        PostgresqlDatabase(url)


def test_mistakes_in_the_url_are_one_sentence_without_the_password(postgresql: PostgresqlServer) -> None:
    with pytest.raises(InvalidValue) as invalid:
        open_database("postgresql://flyball:secret@localhost/db?no_such_option=1")
    with pytest.raises(StoreError, match="does not exist") as absent:
        open_database(f"postgresql://flyball:secret@127.0.0.1:{postgresql.port}/no_such_database")
    with pytest.raises(InvalidValue) as other:
        open_database("mysql://flyball:secret@localhost/db")
    for raised in (invalid, absent, other):
        assert "secret" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_writer_that_is_paused_in_a_transaction_locks_nobody_out(url: str) -> None:
    paused, entered = threading.Event(), threading.Event()

    def pause(transaction: Transaction) -> None:
        transaction.execute("SELECT 1")
        entered.set()
        assert paused.wait(60)
        transaction.execute("SELECT 1")

    with (
        closing(open_database(url, answer_timeout_s=1.0)) as first,
        closing(open_database(url)) as second,
        ThreadPoolExecutor(1) as thread,
    ):
        call = thread.submit(first.write, pause)
        assert entered.wait(60)
        try:
            Documents(second, "groups").put("a", 1)
        finally:
            paused.set()
        with pytest.raises(StoreError, match="PostgreSQL at"):
            call.result()
