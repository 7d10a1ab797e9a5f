"""The publisher's books: accepted + from_outbox = confirmed + rejected + waiting; what is rejected is kept."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flyball import OrderingConfig, OutboxConfig, Publisher, ReceiptConfig, SyncPublisher
from flyball.brokers import Message, Sender, SendResult, connect
from flyball.brokers.connections import Connections
from flyball.brokers.delivery_receipts import Receipts
from flyball.brokers.port import Kind, TooLarge
from flyball.control.controllers import catalogue
from flyball.publisher.handle import Handle, Rejected
from flyball.publisher.publisher import PublisherStats
from flyball.publisher.target_sender import Target
from flyball.store import DeadLetters, Outbox, SqliteDatabase

DEAD = "amqp://127.0.0.1:1/"
"""Nobody answers there."""


@pytest.fixture
def small() -> str:
    """A broker that takes bodies of up to 10 bytes."""
    return f"memory://{uuid.uuid4().hex}?max_body_bytes=10"


async def declare(*urls: str) -> None:
    for url in urls:
        async with await connect(url) as broker:
            await broker.declare("orders")


async def depth(url: str) -> int:
    async with await connect(url) as broker:
        return await broker.depth("orders")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def check_books(stats: PublisherStats) -> None:
    assert stats.accepted + stats.from_outbox == stats.confirmed + stats.rejected + stats.waiting, stats
    assert stats.waiting >= 0


def in_file(path: str | Path) -> tuple[list[str], list[str]]:
    """Ids that wait in an outbox file, and ids of its dead letters."""
    with SqliteDatabase(path) as database:
        waiting = [pending.message.id for pending in Outbox(database).read(0, 1 << 62, 1000)]
        return waiting, [letter.message.id for letter in DeadLetters(database).read_many()]


def test_another_thread_reads_books_that_balance_while_messages_move(url: str, outbox: str | None) -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with (
            ThreadPoolExecutor(3) as pool,
            SyncPublisher(url, channel="orders", outbox=outbox, declare="queue") as publisher,
        ):

            def publish(count: int) -> None:
                for _ in range(count):
                    publisher.publish_many([Message(b"x")] * 10)

            calls = [pool.submit(publish, 40) for _ in range(3)]
            while not all(call.done() for call in calls) or publisher.stats.waiting:
                check_books(publisher.stats)
            for call in calls:
                call.result()
        check_books(publisher.stats)
        assert publisher.stats.confirmed == 1200
    finally:
        sys.setswitchinterval(interval_s)


@pytest.mark.parametrize("required", [1, 2, 3])
@pytest.mark.parametrize("decisions", ["ccc", "ccr", "crc", "rcc", "crr", "rcr", "rrc", "rrr"])
def test_every_target_decides_once_and_a_message_is_confirmed_or_rejected_once(
    required: int, decisions: str
) -> None:
    handle = Handle(Message(b""), "orders", 4, 0)
    handle._expect(required, 3)
    confirmed = rejected = 0
    for decision in decisions:
        if decision == "c":
            confirmed += handle._confirm()
        else:
            handle._refuse(Rejected("too large"))
        rejected += handle.is_rejected
    assert (confirmed, rejected) == ((1, 0) if decisions.count("c") >= required else (0, 1))
    assert (handle._error is not None) == (rejected == 1)


def test_a_rejected_message_is_kept_with_the_reason_logged_once_and_sent_again_on_request(
    small: str, outbox: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await declare(small)
        async with Publisher(small, outbox=outbox) as publisher:
            # The channel is connected later, so its limit is not known yet.
            handle = await publisher.publish(bytes(100), id="large", key=b"k", headers={"n": 1}, channel="orders")
            with pytest.raises(Rejected, match=r"large cannot be published: .* 100 bytes"):
                await handle.wait_confirmed()
            await publisher.drain()
            check_books(publisher.stats)
            assert (publisher.stats.rejected, publisher.stats.waiting) == (1, 0)
            assert publisher.stats.targets[0].rejected == 1
            (problem,) = publisher.problems
            assert problem.startswith(
                "1 messages were rejected and are dead letters of the outbox, the last one: "
            )
            (letter,) = await publisher.dead_letters()
            assert letter.message == Message(bytes(100), "large", b"k", {"n": 1})
            assert (letter.channel, letter.target) == ("orders", f"orders at {small}")
            assert "100 bytes" in letter.reason
            assert await publisher.replay_dead_letters([letter.number]) == 1
            await until(lambda: publisher.stats.rejected == 2)
            check_books(publisher.stats)
            assert publisher.stats.from_outbox == 1
            (again,) = await publisher.dead_letters()
            assert (again.message.id, again.number > letter.number) == ("large", True)
            assert await publisher.dead_letters(after=again.number) == []
            if outbox is None:
                assert await publisher.delete_dead_letters() == 1
                assert await publisher.dead_letters() == []
        assert await depth(small) == 0
        if outbox is not None:
            assert in_file(outbox) == ([], ["large"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    lines = [record.message for record in caplog.records if "large" in record.message]
    assert len(lines) == 2, "one line for each rejection"
    assert lines[0].startswith(
        "message large for 'orders' is a dead letter of the outbox now: message large has 100"
    )


def test_what_one_target_refuses_stays_in_the_outbox_while_another_is_down(small: str, tmp_path: Path) -> None:
    path = tmp_path / "o.db"

    async def main() -> None:
        await declare(small)
        async with Publisher(
            targets=[small, DEAD], required_confirms=1, channel="orders", outbox=path, close_timeout_s=0.2
        ) as publisher:
            handle = await publisher.publish(bytes(100), id="large")
            await until(lambda: publisher.stats.targets[0].rejected == 1)
            check_books(publisher.stats)
            assert (publisher.stats.waiting, publisher.stats.rejected) == (1, 0)
            assert not handle.is_confirmed
        assert in_file(path) == (["large"], [])

    asyncio.run(main())


@pytest.mark.parametrize("small_first", [True, False])
def test_what_one_target_refuses_and_enough_others_store_is_confirmed_once(
    small_first: bool, small: str, url: str, outbox: str | None
) -> None:
    async def main() -> None:
        await declare(small, url)
        targets = [small, url] if small_first else [url, small]
        async with Publisher(targets=targets, required_confirms=1, channel="orders", outbox=outbox) as publisher:
            handles = [await publisher.publish(bytes(100)) for _ in range(50)]
            await asyncio.gather(*(handle.wait_confirmed() for handle in handles))
            await publisher.drain()
            check_books(publisher.stats)
            stats = publisher.stats
            assert (stats.confirmed, stats.rejected, stats.waiting) == (50, 0, 0)
            assert await publisher.dead_letters() == []
        assert (await depth(small), await depth(url)) == (0, 50)
        if outbox is not None:
            assert in_file(outbox) == ([], [])

    asyncio.run(main())


def test_a_message_that_too_few_targets_store_is_rejected_once_all_have_decided(
    small: str, url: str, outbox: str | None
) -> None:
    async def main() -> None:
        await declare(small, url)
        async with Publisher(targets=[small, url], outbox=outbox) as publisher:
            handle = await publisher.publish(bytes(100), id="large", channel="orders")
            fine = await publisher.publish(b"fine", channel="orders")
            with pytest.raises(Rejected):
                await handle.wait_confirmed()
            await fine.wait_confirmed()
            await publisher.drain()
            check_books(publisher.stats)
            assert (publisher.stats.confirmed, publisher.stats.rejected) == (1, 1)
            (letter,) = await publisher.dead_letters()
            assert (letter.message.id, letter.target) == ("large", f"orders at {small}")
        assert (await depth(small), await depth(url)) == (1, 2)  # who can take it has it

    asyncio.run(main())


def test_closing_waits_for_a_healthy_target_beyond_the_required_ones(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'slower.db'}"

    async def main() -> None:
        await declare(url, other)
        async with Publisher(
            targets=[url, other], required_confirms=1, channel="orders", outbox=tmp_path / "o.db"
        ) as publisher:
            await publisher.publish_many([Message(b"%d" % number) for number in range(5000)])
        assert (await depth(url), await depth(other)) == (5000, 5000)

    asyncio.run(main())


def test_closing_says_what_a_target_that_is_down_does_not_have(
    url: str, outbox: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        await declare(url)
        async with Publisher(
            targets=[url, DEAD], required_confirms=1, channel="orders", outbox=outbox, close_timeout_s=600.0
        ) as publisher:
            await publisher.publish_many([Message(b"%d" % number) for number in range(20)])

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (line,) = [record.message for record in caplog.records if "does not have" in record.message]
    assert line.startswith(f"orders at {DEAD} does not have 20 messages that other targets have confirmed: ")


def test_rows_that_no_target_can_take_become_dead_letters_at_once(url: str, tmp_path: Path) -> None:
    """As an `enqueue` of an earlier version, or another program, may have written them."""
    path = tmp_path / "o.db"
    SqliteDatabase(path).close()
    insert = (
        "INSERT INTO flyball_outbox (id, channel, urgency, accepted_s, size_bytes, headers, body) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)"
    )
    deep = "[" * 100_000
    with sqlite3.connect(path) as connection:
        connection.execute(insert, ("name", "no such name!", 4, 0, 0, None, b"x"))
        connection.execute(insert, ("text", "orders", 4, 0, 0, None, "text"))
        connection.execute(insert, ("headers", "orders", 4, 0, 0, "{", b"x"))
        connection.execute(insert, ("deep", "orders", 4, 0, 0, deep, b"x"))
        connection.execute(insert, ("time", "orders", 4, "2026-01-01 00:00:00", 0, None, b"x"))
        connection.execute(insert, ("urgency", "orders", 4.5, 0, 0, None, b"x"))
        connection.execute(insert, ("fine", "orders", 4, 0, "many", '{"n": 1}', b"x"))

    async def main() -> None:
        await declare(url)
        async with Publisher(url, channel="orders", outbox=path, close_timeout_s=600.0) as publisher:
            await until(lambda: publisher.stats.confirmed + publisher.stats.rejected == 7)
            check_books(publisher.stats)
            letters = await publisher.dead_letters()
        assert "invalid channel name 'no such name!'" in letters[0].reason
        assert await depth(url) == 1

    asyncio.run(main())
    assert in_file(path) == ([], ["name", "text", "headers", "deep", "time", "urgency"])


def test_dead_letters_in_memory_make_room_for_messages(small: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await declare(small)
        async with Publisher(small, outbox=OutboxConfig(None, max_bytes=2000)) as publisher:
            for number in range(3):
                # Each on a channel that is not connected yet: the limit is not known.
                async with await connect(small) as broker:
                    await broker.declare(f"orders.{number}")
                handle = await publisher.publish(bytes(600), id=f"{number}", channel=f"orders.{number}")
                with pytest.raises(Rejected):
                    await handle.wait_confirmed()
            assert [letter.message.id for letter in await publisher.dead_letters()] == ["1", "2"]
            check_books(publisher.stats)

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "1 dead letters of an outbox in memory were discarded: max_bytes leaves no room" in caplog.messages


def test_an_id_that_is_used_twice_leaves_the_outbox_with_its_receipts(url: str, outbox: str | None) -> None:
    async def main() -> None:
        await declare(url)
        publisher = Publisher(url, channel="orders", outbox=outbox, receipts=ReceiptConfig())
        async with await connect(url) as broker, publisher:
            await publisher.publish_many([Message(b"%d" % number, "same") for number in range(50)])
            await publisher.drain()
            receiver = await broker.receiver("orders")
            receipts = await Receipts.open(broker, "orders.receipts")
            count = 0
            while count < 50:
                got = await receiver.receive(100)
                await receipts.send(*(delivery.message.id for delivery in got))
                await receiver.ack(*got)
                count += len(got)
            await until(lambda: publisher.stats.received == 50)
            assert publisher._relay._outbox.pending() == (0, 0)
            check_books(publisher.stats)

    asyncio.run(main())


class Faulty:
    """A sender of an adapter with a fault: certain messages make it raise, whatever batch they are in."""

    def __init__(self, sender: Sender, error: Exception, *, stored_first: bool = False) -> None:
        self._sender, self._error, self._stored_first, self.blocked = sender, error, stored_first, False

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        bad = [at for at, message in enumerate(messages) if message.id.startswith("bad")]
        if bad:
            if self._stored_first and bad[0]:
                await self._sender.send_batch(messages[: bad[0]], sequence=sequence)
            raise self._error
        return await self._sender.send_batch(messages, sequence=sequence)

    async def last_sequence(self) -> int | None:
        return await self._sender.last_sequence()

    async def close(self) -> None:
        await self._sender.close()


@pytest.mark.parametrize(
    ("ordering", "error"),
    [
        *itertools.product(
            [None, OrderingConfig(), OrderingConfig("shop")],
            [TypeError("an integer is required"), TooLarge("large")],
        ),
        # In order nothing can pass it, and it is not known whether it is the message or the connection.
        (None, KeyError("x")),
    ],
)
def test_a_message_that_makes_an_adapter_raise_hurts_itself_alone(
    ordering: OrderingConfig | None,
    error: Exception,
    url: str,
    outbox: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Target.open

    async def open_faulty(self: Target, connections: Connections, *, again: bool = False) -> Any:
        connection, sender = await opened(self, connections, again=again)
        return connection, Faulty(sender, error, stored_first=True)

    monkeypatch.setattr(Target, "open", open_faulty)
    kind: Kind = "queue" if ordering is None else "log"

    async def main() -> None:
        async with Publisher(
            url,
            channel="orders",
            outbox=outbox,
            declare=kind,
            ordering=ordering,
            controller=catalogue.make("static", batch=50, window=50),
            close_timeout_s=600.0,
        ) as publisher:
            ids = [f"bad-{number}" if number in (7, 77) else f"{number:04d}" for number in range(200)]
            await publisher.publish_many([Message(b"", id) for id in ids])
            if isinstance(error, KeyError):  # the target has to store others in between
                while publisher.stats.rejected < 2:
                    await publisher.publish(b"", id=f"{len(ids):04d}")
                    ids.append(f"{len(ids):04d}")
                    await asyncio.sleep(0.02)
            await publisher.drain()
            check_books(publisher.stats)
            assert publisher.stats.rejected == 2
            assert {letter.message.id for letter in await publisher.dead_letters()} == {
                "bad-7",
                "bad-77",
            }
        async with await connect(url) as broker:
            if kind == "log":
                bounds = await broker.bounds("orders", 0)
                found = [record.message.id async for part in broker.read("orders", 0, *bounds) for record in part]
            else:
                receiver = await broker.receiver("orders", window=100_000)
                found = [delivery.message.id for delivery in await receiver.receive(100_000)]
        assert sorted(set(found)) == sorted(id for id in ids if not id.startswith("bad"))

    asyncio.run(main())


@pytest.mark.parametrize("urgency", [0, 4])
def test_messages_in_memory_are_bounded_in_bytes(
    urgency: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.publisher.relay._MAX_IN_MEMORY_BYTES", 1_000_000)
    monkeypatch.setattr("flyball.publisher.relay._READ_LIMIT_BYTES", 200_000)
    path = tmp_path / "o.db"

    async def publish() -> None:
        async with Publisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.01) as publisher:
            for _ in range(50):
                await publisher.publish(bytes(100_000), urgency=urgency)
            assert in_memory(publisher) <= (1_100_000 if urgency else 2_100_000)

    async def relay() -> None:
        async with Publisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.01) as publisher:
            await until(lambda: publisher.stats.from_outbox >= 10 and publisher._relay._reader is None)
            assert in_memory(publisher) <= 1_300_000
        await declare(url)
        async with Publisher(url, channel="orders", outbox=path) as publisher:
            await publisher.drain()
            assert publisher._relay._backlog.in_memory_bytes == 0
        assert await depth(url) == 50

    def in_memory(publisher: Publisher) -> int:
        (sender,) = publisher._senders["orders"]
        return sum(len(handle.message.body) for each in sender._queue._classes for handle in each)

    asyncio.run(publish())
    asyncio.run(relay())


def test_what_waits_for_a_target_beyond_the_required_ones_is_bounded_in_bytes(
    url: str, outbox: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flyball.publisher.target_sender._MAX_CONFIRMED_ELSEWHERE_BYTES", 1_000_000)

    async def main() -> None:
        await declare(url)
        async with Publisher(
            targets=[url, DEAD], required_confirms=1, channel="orders", outbox=outbox
        ) as publisher:
            for _ in range(50):
                await (await publisher.publish(bytes(100_000))).wait_confirmed()
                assert publisher._senders["orders"][1]._queue.size_bytes < 1_200_000

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "does not have 50 messages that other targets have confirmed" in caplog.text


def test_what_only_the_broker_can_refuse_is_a_dead_letter_and_the_others_arrive(
    kafka_url: str, tmp_path: Path
) -> None:
    """A compacted topic of Kafka takes no message without a key."""
    name = f"compact-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_url.partition("://")[2].partition("?")[0].rstrip("/")})
    topic = NewTopic(name, 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([topic])[name].result()
    while (listed := admin.list_topics().topics.get(name)) is None or listed.error is not None:
        time.sleep(0.05)  # a broker that has just started lists it a little later

    async def main() -> None:
        async with Publisher(
            kafka_url, channel=name, outbox=tmp_path / "o.db", close_timeout_s=600.0
        ) as publisher:
            messages = [Message(b"x", f"{n}", None if n % 100 == 50 else b"k%d" % n) for n in range(200)]
            await publisher.publish_many(messages)
            await publisher.drain()
            check_books(publisher.stats)
            assert (publisher.stats.confirmed, publisher.stats.rejected) == (198, 2)
        async with await connect(kafka_url) as broker:
            bounds = await broker.bounds(name, 0)
            stored = [record.message.id async for part in broker.read(name, 0, *bounds) for record in part]
            await broker.delete(name)
        assert set(stored) == {message.id for message in messages if message.key is not None}

    asyncio.run(main())
    assert in_file(tmp_path / "o.db") == ([], ["50", "150"])


def test_a_rejection_of_rabbitmq_is_a_dead_letter(amqp_url: str, tmp_path: Path) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with Publisher(
            f"{amqp_url}{'&' if '?' in amqp_url else '?'}max_body_bytes=10",
            outbox=tmp_path / "o.db",
            declare="queue",
            close_timeout_s=600.0,
        ) as publisher:
            bodies = [bytes(11 if number % 100 == 50 else 10) for number in range(500)]
            await publisher.publish_many(
                [Message(body, f"{number}") for number, body in enumerate(bodies)], channel=name
            )
            await publisher.drain()
            check_books(publisher.stats)
            (letter, *others) = await publisher.dead_letters()
            assert "***" in letter.target
            assert len(others) == 4
        async with await connect(amqp_url) as broker:
            assert await broker.depth(name) == 495
            await broker.delete(name)

    asyncio.run(main())
    assert in_file(tmp_path / "o.db") == ([], ["50", "150", "250", "350", "450"])


class Slow:
    """A sender that takes its time."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.blocked = False

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        await asyncio.sleep(0.002)
        results: list[SendResult] = await self._sender.send_batch(messages, sequence=sequence)
        return results

    async def last_sequence(self) -> int | None:
        return None

    async def close(self) -> None:
        await self._sender.close()


def test_an_optional_target_that_was_behind_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = (f"memory://{uuid.uuid4().hex}" for _ in range(2))
    opened = Target.open

    async def open_slow(self: Target, connections: Connections, *, again: bool = False) -> Any:
        connection, sender = await opened(self, connections, again=again)
        return connection, Slow(sender) if self.url == slow else sender

    monkeypatch.setattr(Target, "open", open_slow)
    monkeypatch.setattr("flyball.publisher.target_sender._MAX_CONFIRMED_ELSEWHERE", 10)

    async def main() -> None:
        targets = [quick, slow]
        async with (
            await connect(slow) as broker,
            Publisher(
                targets=targets, channel="c", declare="queue", outbox=None, required_confirms=1
            ) as publisher,
        ):
            receiver = await broker.receiver("c", window=10_000)
            for number in range(300):
                await publisher.publish_many([Message(b"x") for _ in range(1 + number % 13)])
                await asyncio.sleep(0.001 if number % 3 else 0.0)
                assert all(sender.state.pending >= 0 for sender in publisher._relay.channels["c"])
            await publisher.drain()
            last = await publisher.publish(b"last")
            while last.id not in {delivery.message.id for delivery in await receiver.receive(1000)}:
                pass

    asyncio.run(main())
