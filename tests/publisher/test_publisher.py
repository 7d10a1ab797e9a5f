"""The publisher as a program uses it: memory and SQLite outbox, urgency, targets, transactions, full, threads."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
import sqlite3
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from flyball import OrderingConfig, OutboxConfig, Publisher, SyncPublisher
from flyball.brokers import Message, Sender, SendResult, connect
from flyball.brokers.port import TooLarge, Unconfirmed
from flyball.control.controllers import catalogue
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most
from flyball.publisher.handle import Handle
from flyball.publisher.intake import WhenFull
from flyball.publisher.outbox import FileOutbox, OutboxInUse
from flyball.publisher.publisher import Undelivered
from flyball.publisher.target_sender import Target
from flyball.store import Full, Outbox, SqliteDatabase, enqueue
from flyball.testing.contract.messages import numbered, unfit_messages


async def take_all(url: str, queue: str = "orders") -> list[Message]:
    async with await connect(url) as broker:
        receiver = await broker.receiver(queue, window=100_000)
        depth = await broker.depth(queue)
        return [d.message for d in await receiver.receive(100_000, timeout_s=1.0)] if depth else []


def test_what_was_published_arrives_whole_and_the_outbox_is_empty_afterwards(url: str, outbox: str | None) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=outbox, declare="queue") as publisher:
            handle = await publisher.publish(
                b"\x00body",
                key=b"k",
                headers={"n": 1, "b": b"\xff"},
                event_time_s=12.5,
                content_type="x/y",
                id="one",
            )
            assert handle.accepted
            await handle.wait_confirmed()
            assert handle.is_confirmed
            handles = await publisher.publish_many(Message(b"%d" % n) for n in range(1000))
            await asyncio.gather(*(each.wait_confirmed() for each in handles))
            assert (publisher.stats.accepted, publisher.stats.confirmed) == (1001, 1001)
        first, *rest = await take_all(url)
        assert first == Message(b"\x00body", "one", b"k", {"n": 1, "b": b"\xff"}, 12.5, "x/y")
        assert [int(message.body) for message in rest] == list(range(1000))
        if outbox is not None:
            with SqliteDatabase(outbox) as database:
                assert Outbox(database).pending() == (0, 0)

    asyncio.run(main())


def test_messages_of_an_earlier_run_are_sent_with_their_ids(url: str, tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with SqliteDatabase(path) as database:
        old = [Message(b"%d" % n, f"old-{n}") for n in range(1200)]
        Outbox(database).append([Handle(message, "orders", 4, 0) for message in old])

    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=path, declare="queue") as publisher:
            await publisher.drain()
        assert [message.id for message in await take_all(url)] == [f"old-{n}" for n in range(1200)]

    asyncio.run(main())


@pytest.mark.parametrize("library", ["sqlite3", "sqlalchemy"])
def test_relays_what_the_application_commits_in_its_own_transaction(
    library: str, url: str, tmp_path: Path
) -> None:
    path = tmp_path / "application.db"

    def order(number: int, *, commit: bool) -> None:
        message = Message(b"%d" % number, f"order-{number}")
        if library == "sqlite3":
            connection = sqlite3.connect(path, timeout=10.0)
            connection.execute("INSERT INTO orders VALUES (?)", (number,))
            enqueue(connection, "orders", message)
            connection.commit() if commit else connection.rollback()
            connection.close()
            return
        engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        with Session(engine) as session:
            session.execute(sqlalchemy.text("INSERT INTO orders VALUES (:n)"), {"n": number})
            enqueue(session, "orders", message)
            session.commit() if commit else session.rollback()
        engine.dispose()

    async def main() -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE orders (number INTEGER)")
        async with Publisher(url, channel="orders", outbox=path, declare="queue") as publisher:
            for number in range(6):
                await publisher.publish(b"between")
                await asyncio.to_thread(order, number, commit=number % 3 != 2)
            async with await connect(url) as broker:
                while await broker.depth("orders") < 10:
                    await asyncio.sleep(0.01)
        ids = [message.id for message in await take_all(url) if message.id.startswith("order")]
        assert ids == ["order-0", "order-1", "order-3", "order-4"]

    asyncio.run(main())


def test_two_publishers_cannot_share_an_outbox(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue"):
            with pytest.raises(OutboxInUse, match=r"another publisher relays the outbox .*o\.db"):
                async with Publisher(url, channel="orders", outbox=tmp_path / "o.db"):
                    pass

    asyncio.run(main())


async def blocked_broker(url: str, max_bytes: int = 1000) -> None:
    """A queue that is full already."""
    async with await connect(url) as broker:
        await broker.declare("orders", max_bytes=max_bytes)
        sender = await broker.sender("orders")
        await sender.send_batch([Message(b"x" * max_bytes, "stopper")])


async def free(url: str) -> None:
    async with await connect(url) as broker:
        await broker.purge("orders")


def test_waits_for_room_when_full(url: str, outbox: str | None) -> None:
    async def main() -> None:
        await blocked_broker(url)
        async with Publisher(url, channel="orders", outbox=OutboxConfig(outbox, max_bytes=20_000)) as publisher:
            publishing = asyncio.create_task(_publish(publisher, 100))
            while publisher.stats.accepted < 20:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert not publishing.done()
            assert publisher.stats.waiting < 100
            await free(url)
            receiving = asyncio.create_task(_consume(url, 100))
            assert len(await publishing) == 100
            await receiving
        assert publisher.stats.dropped == publisher.stats.refused == 0

    async def _publish(publisher: Publisher, count: int) -> list[object]:
        return [await publisher.publish(bytes(300)) for _ in range(count)]

    async def _consume(url: str, count: int) -> None:
        async with await connect(url) as broker:
            receiver = await broker.receiver("orders")
            while count > 0:
                got = await receiver.receive(10)
                await receiver.ack(*got)
                count -= len(got)

    asyncio.run(main())


def test_raises_or_drops_and_counts_when_full(url: str, outbox: str | None, tmp_path: Path) -> None:
    async def fill(publisher: Publisher) -> int:
        refused = 0
        for _ in range(100):
            try:
                handle = await publisher.publish(bytes(300))
                refused += not handle.accepted
            except Full:
                refused += 1
        return refused

    async def main() -> None:
        await blocked_broker(url)
        options: tuple[WhenFull, ...] = ("error", "drop")
        for when_full in options:
            path = None if outbox is None else tmp_path / f"{when_full}.db"
            publisher = Publisher(
                url,
                channel="orders",
                outbox=OutboxConfig(path, max_bytes=20_000),
                when_full=when_full,
                close_timeout_s=0.1,
            )
            try:
                async with publisher:
                    refused = await fill(publisher)
                    stats = publisher.stats
            except Undelivered:
                assert outbox is None
            assert 0 < refused < 100
            assert stats.accepted == 100 - refused
            assert (stats.refused, stats.dropped) == ((refused, 0) if when_full == "error" else (0, refused))

    asyncio.run(main())


def test_a_message_larger_than_the_outbox_is_refused_at_once_although_others_wait_for_room(
    url: str, outbox: str | None
) -> None:
    async def main() -> None:
        config = OutboxConfig(outbox, max_bytes=2000)
        async with Publisher(url, channel="orders", outbox=config, declare="queue") as publisher:
            with pytest.raises(Full, match="do not fit into an outbox of at most 2000 bytes: raise max_bytes"):
                await publisher.publish_many([Message(bytes(500)), Message(bytes(2001)), Message(bytes(500))])
        assert (publisher.stats.confirmed, publisher.stats.refused) == (2, 1)

    asyncio.run(main())


def test_publish_and_publish_many_refuse_alike(url: str, outbox: str | None) -> None:
    async def main() -> None:
        await blocked_broker(url)
        publisher = Publisher(
            url, channel="orders", outbox=OutboxConfig(outbox, 2000), when_full="error", close_timeout_s=0.1
        )
        with suppress(Undelivered):
            async with publisher:
                with pytest.raises(Full):
                    await publisher.publish(bytes(2001))
                with pytest.raises(Full):
                    await publisher.publish_many([Message(bytes(500)), Message(bytes(2001)), Message(bytes(500))])
                assert (publisher.stats.accepted, publisher.stats.refused) == (2, 2)  # what fits is accepted

    asyncio.run(main())


def test_urgent_messages_overtake_and_low_ones_do_not_starve(url: str, outbox: str | None) -> None:
    async def main() -> None:
        await blocked_broker(url)
        async with Publisher(
            url, channel="orders", outbox=outbox, controller="static", batch=1, urgency_step_s=0.05
        ) as publisher:
            for number in range(60):
                await publisher.publish(b"low %d" % number, urgency=9)
            await publisher.publish(b"urgent early", urgency=0)
            await asyncio.sleep(0.6)  # the low ones age beyond what comes now
            await publisher.publish(b"urgent late", urgency=0)
            async with await connect(url) as broker:
                receiver = await broker.receiver("orders")
                bodies: list[bytes] = []
                while len(bodies) < 63:
                    got = await receiver.receive(1)
                    await receiver.ack(*got)
                    bodies += [delivery.message.body for delivery in got]
        early, late = bodies.index(b"urgent early"), bodies.index(b"urgent late")
        assert early < bodies.index(b"low 59")
        assert late > bodies.index(b"low 30")

    asyncio.run(main())


def test_an_urgent_message_is_stored_before_a_burst_that_came_earlier(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        publisher = Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue")
        async with publisher, asyncio.TaskGroup() as group:
            group.create_task(publisher.publish_many([Message(b"low") for _ in range(5000)], urgency=9))
            await asyncio.sleep(0)
            assert publisher.stats.buffered == 5000
            urgent = await publisher.publish(b"urgent", urgency=0)
            assert urgent.seq <= 501

    asyncio.run(main())


class Failing:
    """A sender that fails at random, before or after it has stored a part of the batch."""

    def __init__(self, sender: Sender, rng: random.Random) -> None:
        self._sender, self._rng, self.blocked = sender, rng, False

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        await asyncio.sleep(0.001 * self._rng.random())
        fine = self._rng.random() < 0.7
        stored = len(messages) if fine else self._rng.choice([0, len(messages) // 2, len(messages)])
        results = await self._sender.send_batch(messages[:stored], sequence=sequence) if stored else []
        known = len(results) if fine else self._rng.choice([0, len(results) // 2, len(results)])
        lost = Unconfirmed("the connection was lost")
        return results[:known] + [SendResult(message.id, lost) for message in messages[known:]]

    async def last_sequence(self) -> int | None:
        return await self._sender.last_sequence()

    async def close(self) -> None:
        await self._sender.close()


@pytest.mark.parametrize("numbered", [False, True])
def test_an_ordered_publisher_keeps_the_order_over_failures(
    numbered: bool, url: str, outbox: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log holds every message once if they are numbered; else repeats may follow, in order again."""
    seed = random.randrange(10**6)
    rng, opened = random.Random(seed), Target.open

    async def open_failing(self: Target, *arguments: Any, **options: Any) -> Any:
        connection, sender = await opened(self, *arguments, **options)
        return connection, Failing(sender, rng)

    monkeypatch.setattr(Target, "open", open_failing)
    monkeypatch.setattr("flyball.publisher.relay._MAX_IN_MEMORY", 300)

    async def main() -> None:
        publisher = Publisher(
            url,
            channel="orders",
            outbox=outbox,
            declare="log",
            ordering=OrderingConfig("shop" if numbered else None),
            controller=catalogue.make(
                "static", batch=50, window=50
            ),  # `auto` would all but stop at so many failures
            close_timeout_s=600.0,
        )
        async with publisher:
            for first in range(0, 2000, 100):
                await publisher.publish_many(Message(b"%d" % n) for n in range(first, first + 100))
                await asyncio.sleep(0.002)
        async with await connect(url) as broker:
            bounds = await broker.bounds("orders", 0)
            found = [int(r.message.body) async for chunk in broker.read("orders", 0, *bounds) for r in chunk]
        assert list(dict.fromkeys(found)) == list(range(2000)), f"seed {seed}"
        assert not numbered or len(found) == 2000, f"seed {seed}"

    asyncio.run(main())


def test_numbers_that_a_log_would_take_for_repeats_are_refused(url: str, tmp_path: Path) -> None:
    def publisher(path: str) -> Publisher:
        return Publisher(
            url, channel="orders", outbox=tmp_path / path, declare="log", ordering=OrderingConfig("shop")
        )

    async def main() -> None:
        async with publisher("a.db") as first:
            await first.publish_many(Message(b"") for _ in range(5))
        async with publisher("a.db") as again:
            await again.publish(b"goes on")
        with pytest.raises(InvalidValue, match="holds message 5 of producer 'shop' and this outbox begins with 0"):
            await publisher("b.db").__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"first_sequence": 3}, "first_sequence=3 numbers messages of a producer: name it"),
        ({"producer": "shop", "first_sequence": -1}, "first_sequence must be an integer >= 0, got -1"),
        ({"producer": "shop", "first_sequence": 3}, "an outbox file continues with its own numbers"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match=reason):
        Publisher("memory://", channel="orders", outbox=tmp_path / "o.db", ordering=OrderingConfig(**options))


def test_several_targets_and_how_many_are_required(tmp_path: Path, url: str) -> None:
    other = f"memory://{uuid.uuid4().hex}"
    dead = "amqp://127.0.0.1:1/"

    async def main() -> None:
        async with Publisher(
            targets=[url, (other, "copies")], channel="orders", outbox=tmp_path / "a.db", declare="queue"
        ) as publisher:
            await (await publisher.publish(b"both")).wait_confirmed()
        assert [m.body for m in await take_all(url)] == [b"both"]
        assert [m.body for m in await take_all(other, "copies")] == [b"both"]
        async with Publisher(
            targets=[dead, url], required_confirms=1, channel="orders", outbox=tmp_path / "b.db", declare="queue"
        ) as publisher:
            await (await publisher.publish(b"one is enough")).wait_confirmed()
            assert len(publisher.problems) == 1
        async with Publisher(
            targets=[dead, url], channel="orders", outbox=tmp_path / "c.db", declare="queue", close_timeout_s=0.5
        ) as publisher:
            handle = await publisher.publish(b"both are required")
            with pytest.raises(TimeoutError):
                await wait_at_most(handle.wait_confirmed(), 0.3)
        with SqliteDatabase(tmp_path / "c.db") as database:
            assert Outbox(database).pending()[0] == 1

    asyncio.run(main())


def test_a_message_that_the_broker_does_not_take_is_refused_at_the_call(url: str, outbox: str | None) -> None:
    async def main() -> None:
        async with Publisher(
            f"{url}?max_body_bytes=1000", channel="orders", outbox=outbox, declare="queue"
        ) as publisher:
            with pytest.raises(TooLarge, match="message large has 2000 bytes, this broker accepts 1000"):
                await publisher.publish(bytes(2000), id="large")
            with pytest.raises(TooLarge):
                await publisher.publish_many([Message(b"small"), Message(bytes(1001))])
            await (await publisher.publish(bytes(1000))).wait_confirmed()
            assert publisher.stats.accepted == 1

    asyncio.run(main())


def test_a_message_is_accepted_if_enough_targets_take_it(url: str, outbox: str | None) -> None:
    async def main() -> None:
        targets = [f"{url}{number}?max_body_bytes={limit}" for number, limit in enumerate((10, 100, 1000))]
        async with Publisher(
            targets=targets, required_confirms=2, channel="orders", outbox=outbox, declare="queue"
        ) as publisher:
            await (await publisher.publish(bytes(100))).wait_confirmed()
            with pytest.raises(TooLarge, match="this broker accepts 100"):
                await publisher.publish(bytes(101))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"body": "text"}, "the body of a message must be bytes, got str 'text'"),
        ({"body": Message(b"whole")}, r"must be bytes, got a whole Message: pass messages to publish_many\(\["),
        ({"body": b"", "key": "k"}, r"the key of a message must be bytes \| None, got str 'k'"),
        ({"body": b"", "headers": {"a": [1]}}, r"header 'a' of a message must be str .* bytes, got list \[1\]"),
        ({"body": b"", "id": "\ud800"}, "the id of a message must be text that UTF-8 can encode"),
    ],
)
def test_what_is_no_message_is_refused_at_the_call_and_others_go_on(
    options: dict[str, Any], reason: str, url: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue") as publisher:
            with pytest.raises(InvalidValue, match=reason):
                await publisher.publish(**options)
            await (await publisher.publish(b"fit")).wait_confirmed()

    asyncio.run(main())


def test_an_unfit_message_is_refused_alone_whatever_is_stored_with_it(url: str, outbox: str | None) -> None:
    async def main() -> None:
        unfit = unfit_messages()
        async with Publisher(url, channel="orders", outbox=outbox, declare="queue") as publisher:
            calls = itertools.chain(*zip(unfit, numbered(len(unfit)), strict=True))
            results = await asyncio.gather(
                *(publisher.publish_many([message]) for message in calls), return_exceptions=True
            )
            assert [type(result) for result in results] == [InvalidValue, list] * len(unfit)
            await publisher.drain()
            assert (publisher.stats.accepted, publisher.stats.confirmed) == (len(unfit), len(unfit))
        assert len(await take_all(url)) == len(unfit)

    asyncio.run(main())


def test_more_than_is_held_in_memory_stays_in_the_store_and_arrives(
    url: str, outbox: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.publisher.relay._MAX_IN_MEMORY", 50)

    async def main() -> None:
        await blocked_broker(url)
        async with Publisher(url, channel="orders", outbox=outbox) as publisher:
            handles = await publisher.publish_many(Message(b"%d" % n) for n in range(2000))
            assert outbox is None or publisher._relay._backlog.in_memory < 2000
            del handles[10:]  # nobody waits for most of them
            await free(url)
            async with await connect(url) as broker:
                receiver = await broker.receiver("orders")
                seen: list[int] = []
                while len(seen) < 2000:
                    got = await receiver.receive(100)
                    await receiver.ack(*got)
                    seen += [int(delivery.message.body) for delivery in got]
            await asyncio.gather(*(handle.wait_confirmed() for handle in handles))
            assert sorted(seen) == list(range(2000))
            await publisher.drain()
            assert publisher.stats.waiting == 0

    asyncio.run(main())


def test_a_full_disk_is_a_clear_error_and_accepted_messages_are_kept(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        await blocked_broker(url)
        path = tmp_path / "o.db"
        async with Publisher(url, channel="orders", outbox=path, close_timeout_s=0.1) as publisher:
            await publisher.publish(b"kept", id="kept")
            assert isinstance(publisher._outbox, FileOutbox)
            writer = publisher._outbox._sqlite._writer
            pages = writer.execute("PRAGMA page_count").fetchone()[0]
            writer.execute(f"PRAGMA max_page_count = {pages + 2}")
            with pytest.raises(Full, match="free some space; accepted messages are safe"):
                await asyncio.gather(*(publisher.publish(bytes(10_000)) for _ in range(100)))
        with SqliteDatabase(path) as database:
            assert "kept" in [pending.message.id for pending in Outbox(database).read(0, 1 << 62, 1000)]

    asyncio.run(main())


def test_sync_face_from_many_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    with SyncPublisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue") as publisher:

        def work(thread: int) -> None:
            for number in range(50):
                handle = publisher.publish(b"%d-%d" % (thread, number))
            handle.wait_confirmed(timeout_s=60.0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.drain()
        assert publisher.stats.confirmed == 400
    found = {message.body for message in asyncio.run(take_all(url))}
    assert found == {b"%d-%d" % (thread, number) for thread in range(8) for number in range(50)}


@pytest.mark.parametrize(
    "method",
    [
        "__init__",
        "publish",
        "publish_many",
        "drain",
        "dead_letters",
        "replay_dead_letters",
        "delete_dead_letters",
    ],
)
def test_the_sync_face_takes_the_same_parameters(method: str) -> None:
    of_publisher, of_sync = (inspect.signature(getattr(face, method)) for face in (Publisher, SyncPublisher))
    assert list(of_sync.parameters.values()) == list(of_publisher.parameters.values())


def test_the_steps_show_the_knee(url: str) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=None, declare="queue") as publisher:
            await (await publisher.publish(b"x")).wait_confirmed()
            await asyncio.sleep(0.01)
            parts = publisher.steps()[-1].parts
            assert parts["knee"] == pytest.approx(parts["rate"] * parts["round_trip_s"])
            assert parts["round_trip_s"] > 0.0
            (target,) = publisher.stats.targets
            assert (target.channel, target.confirmed, target.terms) == ("orders", 1, parts)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": ["memory://"]}, "either a broker URL or targets"),
        ({"when_full": "panic"}, "must be 'wait', 'error' or 'drop', got 'panic'"),
        ({"required_confirms": 2}, r"between 1 and 1 \(the number of targets\), got 2"),
        ({"controller": "pid"}, "controller 'pid' needs"),
        ({"buffer": 0}, "buffer must be an integer >= 1 .*, got 0"),
    ],
)
def test_refuses_what_makes_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        Publisher("memory://", channel="orders", outbox=None, **options)
