"""sqlite:/// keeps the contract; and what only an embedded file broker has to show."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from flyball.brokers import Broker, Message, connect
from flyball.brokers.port import Blocked, NoSuchChannel, Unconfirmed, Unreachable
from flyball.brokers.sqlite.broker import SqliteBroker
from flyball.brokers.sqlite.claims import remove_receiver
from flyball.brokers.sqlite.codec import UnreadableBatch
from flyball.brokers.sqlite.receiver import SqliteReceiver
from flyball.errors import InvalidValue
from flyball.testing import crash
from flyball.testing.broker_contract import BrokerContract, ids, numbered, records

Scenario = Callable[[SqliteBroker], Awaitable[None]]


class TestSqlite(BrokerContract):
    quiet_s = 0.05

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self._path = tmp_path / "broker.db"

    def url(self) -> str:
        return f"sqlite:///{self._path}"

    def write_unreadable(self, channel: str) -> int:
        """Send messages, each as a batch of its own, and damage what is stored beside their bodies."""

        async def send() -> None:
            async with await connect(self.url()) as broker:
                sender = await broker.sender(channel)
                for message in (Message(b"a", headers={"n": "1234"}), Message(b"b", content_type="abcd")):
                    assert (await sender.send_batch([message]))[0].ok

        asyncio.run(send())
        with closing(sqlite3.connect(self._path)) as file, file:
            last = file.execute("SELECT batch, data FROM broker_payloads ORDER BY batch DESC LIMIT 2").fetchall()
            for (batch, data), (old, new) in zip(
                last, ((b'"abcd"', b"[1, 2]"), (b'"1234"', b'"12"}}')), strict=True
            ):
                assert old in data
                file.execute(
                    "UPDATE broker_payloads SET data = ? WHERE batch = ?", (data.replace(old, new), batch)
                )
        return 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


def run(path: Path, scenario: Scenario, options: str = "") -> None:
    async def main() -> None:
        async with await connect(f"sqlite:///{path}{options}") as broker:
            assert isinstance(broker, SqliteBroker)
            await scenario(broker)

    asyncio.run(main())


async def send(broker: Broker, channel: str, messages: list[Message]) -> None:
    results = await (await broker.sender(channel)).send_batch(messages)
    assert all(result.ok for result in results)


# --- several processes, crashes, pauses ---------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "seed"), [("queue", 1), ("queue", 2), ("log", 3)])
def test_killed_clients_lose_nothing(path: Path, kind: str, seed: int) -> None:
    async def declare(broker: SqliteBroker) -> None:
        if kind == "queue":
            await broker.declare("jobs")
        else:
            await broker.declare("jobs", "log", partitions=2)

    run(path, declare)
    group = None if kind == "queue" else "readers"
    ledger = crash.kill_clients(
        f"sqlite:///{path}", "jobs", group=group, seed=seed, messages=3000, drain_idle_s=2.0
    )
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 3000


def test_a_paused_receiver_cannot_settle_what_was_given_to_others(path: Path) -> None:
    sent = numbered(10)

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        await send(broker, "jobs", sent)
        ledger = crash.Ledger()
        arguments = ("--window", "10", "--work-s", "1.0")
        paused = crash.Client(ledger, "receive", f"sqlite:///{path}?lease_s=0.3", "jobs", *arguments)
        try:
            assert await asyncio.to_thread(paused.wait_for, "got")
            os.kill(paused.pid, signal.SIGSTOP)
            other = await broker.receiver("jobs")
            deliveries = await other.receive(10, timeout_s=30.0)
            assert sorted(ids(deliveries)) == sorted(ids(sent))
            assert all(delivery.redelivered and delivery.attempt == 2 for delivery in deliveries)
            os.kill(paused.pid, signal.SIGCONT)
            assert await asyncio.to_thread(paused.wait_for, "acked")  # it believes so
        finally:
            paused.kill()
        await other.close()
        third = await broker.receiver("jobs")
        assert ids(await third.receive(10, timeout_s=30.0)) == ids(sent)

    run(path, scenario)


def test_what_one_process_sends_another_receives_while_it_waits(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs")
        waiting = asyncio.create_task(receiver.receive(100, timeout_s=60.0))
        await asyncio.sleep(0.05)
        arguments = ("--run", "r", "--count", "5", "--batch", "5")
        sender = crash.Client(crash.Ledger(), "send", f"sqlite:///{path}", "jobs", *arguments)
        assert ids(await waiting) == [f"r-{number:08d}" for number in range(5)]
        assert await asyncio.to_thread(sender.join, 60.0) == 0

    run(path, scenario)


def test_everything_is_there_after_a_restart(path: Path) -> None:
    sent = numbered(30)

    async def first(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        await broker.subscribe("jobs", "watchers")
        await send(broker, "jobs", sent)
        receiver = await broker.receiver("jobs")
        await receiver.ack(*await receiver.receive(10))
        await receiver.receive(5)

    async def second(broker: SqliteBroker) -> None:
        assert await broker.depth("jobs") == 20
        assert await broker.depth("jobs", "watchers") == 30
        receiver = await broker.receiver("jobs")
        got = await receiver.receive(100)
        assert ids(got) == ids(sent[10:])
        assert [delivery.attempt for delivery in got] == [2] * 5 + [1] * 15
        watcher = await broker.subscribe("jobs", "watchers")
        assert ids(await watcher.receive(100)) == ids(sent)

    run(path, first)
    run(path, second)


# --- sending ------------------------------------------------------------------------------------------------


def test_senders_share_commits(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        sender = await broker.sender("jobs")
        before = broker.commits
        await asyncio.gather(*(sender.send_batch(numbered(3)) for _ in range(200)))
        assert await broker.depth("jobs") == 600
        assert broker.commits - before < 100

    run(path, scenario)


def test_a_full_queue_blocks_until_another_connection_drains_it(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs", max_bytes=10_000)
        sender = await broker.sender("jobs")
        batch_of_30 = [Message(bytes(1000)) for _ in range(30)]
        sending = asyncio.create_task(sender.send_batch(batch_of_30))
        while not sender.blocked:
            assert not sending.done()
            await asyncio.sleep(0.001)
        async with await connect(f"sqlite:///{path}") as other:
            receiver = await other.receiver("jobs")
            got: list[str] = []
            while len(got) < 30:
                batch = await receiver.receive()
                await receiver.ack(*batch)
                got += ids(batch)
        assert [result.id for result in await sending] == got
        assert not sender.blocked

    run(path, scenario)


def test_a_full_queue_that_nobody_drains_is_an_error_and_keeps_what_it_took(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs", max_bytes=10_000)
        sender = await broker.sender("jobs")
        results = await sender.send_batch([Message(bytes(1000)) for _ in range(30)])
        stored = [result.id for result in results if result.ok]
        assert 0 < len(stored) < 30
        assert all(isinstance(result.error, Blocked) for result in results if not result.ok)
        receiver = await broker.receiver("jobs")
        assert ids(await receiver.receive()) == stored

    run(path, scenario, "?blocked_timeout_s=0.05")


def test_a_full_disk_is_a_clear_error_and_accepted_messages_stay(path: Path) -> None:
    accepted: list[str] = []

    async def fill(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        sender = await broker.sender("jobs")

        def no_more_pages(db: sqlite3.Connection) -> None:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count={pages + 40}").fetchall()

        await broker._session.write_relaxed(no_more_pages)
        for _ in range(100):
            results = await sender.send_batch([Message(bytes(20_000))])
            if not results[0].ok:
                break
            accepted.append(results[0].id)
        assert isinstance(results[0].error, Blocked)
        assert "disk" in str(results[0].error)
        # and the connection goes on: space freed by a receiver is used again
        receiver = await broker.receiver("jobs")
        await receiver.ack(*await receiver.receive(5))
        del accepted[:5]
        results = await sender.send_batch([Message(bytes(20_000))])
        assert results[0].ok
        accepted.append(results[0].id)

    async def look(broker: SqliteBroker) -> None:
        receiver = await broker.receiver("jobs")
        assert ids(await receiver.receive(200)) == accepted

    run(path, fill)
    run(path, look)


def test_a_file_that_others_keep_locked_is_an_error_after_a_bounded_wait(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        sender = await broker.sender("jobs")
        locker = sqlite3.connect(path, isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        results = await sender.send_batch(numbered(2))
        assert all(isinstance(result.error, Blocked) for result in results)
        locker.execute("ROLLBACK")
        locker.close()
        assert all(result.ok for result in await sender.send_batch(numbered(2)))
        assert await broker.depth("jobs") == 2

    run(path, scenario, "?busy_timeout_s=0.05")


def test_repeats_are_dropped_across_partitions(path: Path) -> None:
    sent = [Message(b"x", key=b"%d" % at if at % 3 else None) for at in range(50)]

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log", partitions=4)
        for first in (0, 10, 5, 20, 20):
            sender = await broker.sender("log", producer="p")
            await sender.send_batch(sent[first : first + 30], sequence=first)
        found = [
            record.message.id
            for partition in range(4)
            for record in await records(broker, "log", partition, *await broker.bounds("log", partition))
        ]
        assert sorted(found) == sorted(ids(sent))
        with pytest.raises(InvalidValue, match="producer"):
            await (await broker.sender("log")).send_batch(sent[:1], sequence=7)

    run(path, scenario)


# --- retention ----------------------------------------------------------------------------------------------


def test_a_log_keeps_its_newest_bytes(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log", max_bytes=100_000)
        group = await broker.subscribe("log", "g")
        await send(broker, "log", [Message(b"first")])
        in_flight = await group.receive(1)
        for _ in range(50):
            await send(broker, "log", [Message(bytes(1000)) for _ in range(10)])
        first, end = await broker.bounds("log", 0)
        assert end == 501
        assert 60 <= end - first <= 100
        remaining = await records(broker, "log", 0, 0, end)
        assert [record.offset for record in remaining] == list(range(first, end))
        await group.ack(*in_flight)  # of a message that was dropped
        assert await broker.depth("log", "g") == end - first
        assert [delivery.offset for delivery in await group.receive(5)] == list(range(first, first + 5))

    run(path, scenario)


def test_a_log_forgets_what_is_too_old(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log", retention_s=1000.0)
        await send(broker, "log", numbered(10))
        await broker._session.write_relaxed(
            lambda db: db.execute("UPDATE broker_batches SET stored_s = stored_s - 2000")
        )
        await send(broker, "log", numbered(3))
        assert await broker.bounds("log", 0) == (10, 13)
        assert await broker.depth("log") == 3

    run(path, scenario)


# --- receiving ----------------------------------------------------------------------------------------------


def test_a_cancelled_receive_takes_no_message_with_it(path: Path) -> None:
    sent = numbered(60)

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs", window=7)
        await send(broker, "jobs", sent)
        got: list[str] = []
        for turn in range(2000):
            waiting = asyncio.create_task(receiver.receive(7))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                batch = await waiting
            except asyncio.CancelledError:
                batch = await receiver.receive(3, timeout_s=0.0) if turn % 2 else []
            assert receiver.in_flight == len(batch) <= 7
            await receiver.ack(*batch)
            got += ids(batch)
            if len(got) == 60:
                break
        assert got == ids(sent)

    run(path, scenario)


def test_acknowledged_messages_leave_the_file(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs", window=1000)
        group = await broker.subscribe("jobs", "g", window=1000)
        await send(broker, "jobs", numbered(100))
        await receiver.ack(*(await receiver.receive(100)))
        got = await group.receive(100)
        await group.ack(*got[::2])

        def rows(db: sqlite3.Connection) -> tuple[int, ...]:
            tables = ("batches", "payloads", "waiting", "claimed")
            return tuple(db.execute(f"SELECT count(*) FROM broker_{table}").fetchone()[0] for table in tables)

        assert (await broker._session.read(rows))[:3] == (1, 1, 0)
        await group.ack(*got[1::2])
        assert await broker._session.read(rows) == (0, 0, 0, 0)

    run(path, scenario)


# --- opening ------------------------------------------------------------------------------------------------


def refused(url: str, error_type: type[Exception], text: str) -> None:
    with pytest.raises(error_type, match=text) as caught:
        asyncio.run(connect(url))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_ours_is_refused_in_one_sentence(path: Path) -> None:
    path.write_bytes(b"this is a letter, not a database, " * 100)
    refused(f"sqlite:///{path}", Unreachable, "not a SQLite file")
    assert path.read_bytes().startswith(b"this is a letter")
    foreign = path.with_name("foreign.db")
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE invoices (n)")
    other.close()
    refused(f"sqlite:///{foreign}", Unreachable, "another program")
    refused(f"sqlite:///{path.parent}", Unreachable, "cannot be opened")
    refused(f"sqlite:///{path.parent}/no/such/file.db", Unreachable, "no folder")
    refused("sqlite://file.db", InvalidValue, "sqlite:///events.db")
    refused("sqlite://", InvalidValue, "sqlite:///events.db")
    refused(f"sqlite:///{path}?colour=red", InvalidValue, "colour")
    refused(f"sqlite:///{path}?durability=none", InvalidValue, "power or process")


def test_a_newer_schema_is_refused(path: Path) -> None:
    async def nothing(broker: SqliteBroker) -> None:
        assert await broker.channels() == []

    run(path, nothing)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT version FROM broker_schema").fetchone() == (1,)
        db.execute("UPDATE broker_schema SET version = 99")
    db.close()
    refused(f"sqlite:///{path}", Unreachable, "newer Flyball")


def test_messages_in_a_newer_layout_wait_for_a_newer_program_and_their_neighbours_arrive(path: Path) -> None:
    def set_layout(version: int) -> None:
        with closing(sqlite3.connect(path)) as file, file:
            (data,) = file.execute("SELECT data FROM broker_payloads WHERE batch = 2").fetchone()
            file.execute("UPDATE broker_payloads SET data = ? WHERE batch = 2", (bytes((version,)) + data[1:],))

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        messages = numbered(6)
        for at in (0, 2, 4):
            await send(broker, "jobs", messages[at : at + 2])
        set_layout(9)
        receiver = await broker.receiver("jobs")
        with pytest.raises(UnreadableBatch, match="upgrade this program"):
            await receiver.receive()
        deliveries = await receiver.receive(timeout_s=30)
        assert ids(deliveries) == [message.id for message in messages if message not in messages[2:4]]
        await receiver.ack(*deliveries)
        await receiver.close()
        set_layout(1)
        assert ids(await (await broker.receiver("jobs")).receive()) == [message.id for message in messages[2:4]]

    run(path, scenario)


def test_relative_paths_belong_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with await connect("sqlite:///here.db") as broker:
            await broker.declare("jobs")

    asyncio.run(scenario())
    assert (tmp_path / "here.db").exists()


def test_durability_is_stated(path: Path) -> None:
    async def synchronous(broker: SqliteBroker) -> int:
        await broker.declare("jobs")
        level: int = await broker._session.write_relaxed(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
        return level

    async def power(broker: SqliteBroker) -> None:
        assert broker.capabilities.durable
        level = await broker._session.write(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
        assert level == 2

    async def process(broker: SqliteBroker) -> None:
        assert not broker.capabilities.durable
        assert await synchronous(broker) == 1

    run(path, power)
    run(path, process, "?durability=process")


def test_a_deleted_channel_is_gone_for_open_senders(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        sender = await broker.sender("jobs")
        await broker.delete("jobs")
        results = await sender.send_batch(numbered(1))
        assert isinstance(results[0].error, NoSuchChannel)

    run(path, scenario)


# --- failures that pass --------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds a write transaction."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


def test_a_receiver_goes_on_when_the_file_is_no_longer_locked(path: Path) -> None:
    sent = numbered(5)

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs")
        await send(broker, "jobs", sent)
        with locked(path), pytest.raises(Blocked):
            await receiver.receive(2, timeout_s=5.0)
        assert ids(await receiver.receive(5, timeout_s=30.0)) == ids(sent)

    run(path, scenario, "?busy_timeout_s=0.05")


def test_an_acknowledgement_that_failed_can_be_repeated(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs")
        await send(broker, "jobs", numbered(6))
        got = await receiver.receive(6)
        with locked(path):
            with pytest.raises(Blocked):
                await receiver.ack(*got[:2])
            with pytest.raises(Blocked):
                await receiver.nack(*got[2:4])
            cancelled = asyncio.create_task(receiver.ack(*got[4:]))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            assert cancelled.cancelled()
            assert receiver.in_flight == 6
        await receiver.ack(*got[:2], *got[4:])
        await receiver.nack(*got[2:4])
        again = await receiver.receive(6)
        assert ids(again) == ids([delivery.message for delivery in got[2:4]])
        await receiver.ack(*again)
        assert await broker._session.read(lambda db: db.execute("SELECT * FROM broker_claimed").fetchall()) == []

    run(path, scenario, "?busy_timeout_s=0.05")


def test_a_locked_file_does_not_keep_a_receiver_or_its_broker_from_closing(path: Path) -> None:
    sent = numbered(3)

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        await send(broker, "jobs", sent)
        receiver = await broker.receiver("jobs")
        await receiver.receive(3)
        with locked(path):
            await broker.close()
        async with await connect(f"sqlite:///{path}?lease_s=0.2") as other:
            assert ids(await (await other.receiver("jobs")).receive(3, timeout_s=30.0)) == ids(sent)

    run(path, scenario, "?busy_timeout_s=0.05&lease_s=0.2")


def _remove(db: sqlite3.Connection, number: int) -> None:
    remove_receiver(db, number)


def test_deliveries_of_a_lease_that_was_lost_can_be_settled_at_any_moment(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        await send(broker, "jobs", numbered(3))
        receiver = await broker.receiver("jobs")
        assert isinstance(receiver, SqliteReceiver)
        got = await receiver.receive(3)
        for turn in range(40):
            number = receiver._number
            await broker._session.write_relaxed(partial(_remove, number=number))
            waiting = asyncio.create_task(receiver.receive(3))
            await asyncio.sleep(turn / 20_000)
            await receiver.ack(*got)  # others may have them by now: nothing is acknowledged
            got = await waiting
            assert len(got) == 3
            assert receiver.in_flight == 3

    run(path, scenario)


def test_two_calls_of_receive_share_what_was_claimed(path: Path) -> None:
    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("jobs")
        receiver = await broker.receiver("jobs")
        await send(broker, "jobs", numbered(10))
        halves = await asyncio.gather(receiver.receive(5), receiver.receive(5))
        got = ids([delivery.message for half in halves for delivery in half])
        assert len(got) == len(set(got))

    run(path, scenario)


# --- channels that are made anew -----------------------------------------------------------------------------


def test_a_group_with_members_misses_nothing_of_a_log_that_was_made_anew(path: Path) -> None:
    sent = numbered(4)

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log")
        member = await broker.subscribe("log", "readers")
        await send(broker, "log", numbered(2))
        old = await member.receive(1)
        await broker.delete("log")
        await broker.declare("log", "log")
        await send(broker, "log", sent)
        await member.ack(*old)
        assert ids(await member.receive(10, timeout_s=30.0)) == ids(sent)
        assert await broker.depth("log", "readers") == 4

    run(path, scenario)


def test_a_sender_goes_on_with_a_log_that_was_made_anew_with_other_partitions(path: Path) -> None:
    sent = [Message(b"", key=b"%d" % at) for at in range(20)]

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log", partitions=4)
        sender = await broker.sender("log", producer="p")
        await sender.send_batch(sent[:5], sequence=0)
        await broker.delete("log")
        await broker.declare("log", "log", partitions=2)
        assert await sender.last_sequence() is None
        results = await sender.send_batch(sent, sequence=0)
        assert all(result.ok and not result.duplicate for result in results)
        assert await broker.depth("log") == 20

    run(path, scenario)


def test_what_follows_a_batch_that_was_not_stored_is_not_stored_either(path: Path) -> None:
    """Otherwise the log would take the missing messages for repeats."""

    async def scenario(broker: SqliteBroker) -> None:
        await broker.declare("log", "log")
        sender = await broker.sender("log", producer="p")
        await sender.send_batch(numbered(1), sequence=0)
        big, small = [Message(bytes(2_000_000))], numbered(3)

        def limit(db: sqlite3.Connection, more: int) -> None:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count={pages + more}").fetchall()

        await broker._session.write_relaxed(lambda db: limit(db, 40))
        first, second = await asyncio.gather(
            sender.send_batch(big, sequence=1), sender.send_batch(small, sequence=2)
        )
        assert isinstance(first[0].error, Blocked)
        assert all(isinstance(result.error, Unconfirmed) for result in second)
        await broker._session.write_relaxed(lambda db: limit(db, 4000))
        for messages, sequence in ((big, 1), (small, 2)):
            results = await sender.send_batch(messages, sequence=sequence)
            assert all(result.ok and not result.duplicate for result in results)
        found = await records(broker, "log", 0, 1, 100)
        assert [record.message.id for record in found] == ids([*big, *small])

    run(path, scenario)


def test_connections_may_create_the_same_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait for others that change a new file to its write-ahead log."""

    async def scenario() -> None:
        for number in range(60):
            url = f"sqlite:///{tmp_path / str(number)}.db"
            for broker in await asyncio.gather(*(connect(url) for _ in range(4))):
                await broker.close()

    asyncio.run(scenario())
