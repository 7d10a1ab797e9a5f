"""Every call ends: what becomes of calls under way, of locks, threads and tasks, whenever a publisher closes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flyball import OutboxConfig, Publisher, SyncPublisher
from flyball.brokers import Message, connect
from flyball.brokers.port import NoSuchChannel
from flyball.errors import InvalidValue
from flyball.publisher.handle import Handle, PublisherClosed
from flyball.publisher.outbox import FileOutbox
from flyball.publisher.publisher import Undelivered
from flyball.store import Outbox, SqliteDatabase
from flyball.store.protocol import Busy, StoreError

DEAD = "amqp://127.0.0.1:1/"
GUARD_S = 120.0
"""After this a call counts as one that never ends; on a healthy machine all end at once."""


async def fill_queue(url: str) -> None:
    """Declare a queue that is full, so that nothing is confirmed."""
    async with await connect(url) as broker:
        await broker.declare("orders", max_bytes=1000)
        await (await broker.sender("orders")).send_batch([Message(bytes(1000))])


async def outcomes(tasks: Sequence[asyncio.Task[Any]]) -> list[Any]:
    """The result or the exception of each, all of which have to end."""
    _, pending = await asyncio.wait(tasks, timeout=GUARD_S)
    assert not pending
    return [task.exception() or task.result() for task in tasks]


def stored(path: str) -> int:
    with SqliteDatabase(path) as database:
        return Outbox(database).pending()[0]


def test_calls_under_way_at_an_orderly_close_are_stored_and_confirmed(url: str, outbox: str | None) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=outbox, declare="queue", buffer=100) as publisher:
            tasks = [asyncio.create_task(publisher.publish(b"%d" % n)) for n in range(3000)]
            await asyncio.sleep(0)
        handles = await outcomes(tasks)
        assert all(handle.is_confirmed for handle in handles)
        async with await connect(url) as broker:
            assert await broker.depth("orders") == 3000

    asyncio.run(main())


def test_calls_under_way_at_an_early_close_hear_whether_the_message_is_in_the_outbox(
    url: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "o.db")

    async def main() -> None:
        await fill_queue(url)
        tasks: list[asyncio.Task[Handle]] = []
        with suppress(KeyError):
            async with Publisher(url, channel="orders", outbox=path, buffer=1000) as publisher:
                tasks = [asyncio.create_task(publisher.publish(b"x")) for _ in range(3000)]
                await asyncio.sleep(0)
                raise KeyError("the application's own error")
        results = await outcomes(tasks)
        accepted = [each for each in results if isinstance(each, Handle)]
        refused = [each for each in results if isinstance(each, PublisherClosed)]
        assert len(accepted) + len(refused) == 3000
        assert all("was stored: it is not in the outbox" in str(error) for error in refused)
        assert refused
        assert stored(path) == len(accepted)

    asyncio.run(main())


def test_a_call_that_waits_for_room_ends_with_the_publisher(url: str, outbox: str | None) -> None:
    async def main() -> None:
        await fill_queue(url)
        config = OutboxConfig(outbox, max_bytes=3000)
        tasks: list[asyncio.Task[Any]] = []
        with suppress(Undelivered):
            async with Publisher(url, channel="orders", outbox=config, close_timeout_s=0.1) as publisher:
                tasks = [asyncio.create_task(publisher.publish(bytes(500))) for _ in range(20)]
                tasks += [asyncio.create_task(publisher.publish_many([Message(bytes(500))] * 20))]
                while not publisher.stats.accepted:
                    await asyncio.sleep(0.01)
        results = await outcomes(tasks)
        kinds = Counter(type(each).__name__ for each in results)
        assert set(kinds) == {"Handle", "PublisherClosed"}
        assert isinstance(results[-1], PublisherClosed)
        assert kinds["Handle"] <= publisher.stats.accepted < 40

    asyncio.run(main())


@pytest.mark.parametrize("orderly", [True, False])
def test_waits_for_a_confirm_and_drains_end_with_the_publisher(
    orderly: bool, url: str, outbox: str | None
) -> None:
    fate = (
        "is lost, because the outbox is in memory" if outbox is None else "is in the outbox .*outbox.db, and the"
    )

    async def main() -> None:
        await fill_queue(url)
        tasks: list[asyncio.Task[None]] = []
        with suppress(Undelivered, KeyError):
            async with Publisher(url, channel="orders", outbox=outbox, close_timeout_s=0.1) as publisher:
                handle = await publisher.publish(b"x", id="seven")
                tasks = [asyncio.create_task(handle.wait_confirmed()), asyncio.create_task(publisher.drain())]
                await asyncio.sleep(0)
                if not orderly:
                    raise KeyError("the application's own error")
        for error in await outcomes(tasks):
            with pytest.raises(PublisherClosed, match=f"closed before .* was confirmed: it {fate}"):
                raise error
        with pytest.raises(PublisherClosed, match="before message seven was confirmed"):
            await handle.wait_confirmed()
        with pytest.raises(PublisherClosed, match="this publisher is closed: make another one"):
            await publisher.drain()

    asyncio.run(main())


def test_threads_inside_of_calls_end_with_the_publisher(tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    ended: dict[str, BaseException | None] = {}

    def run(name: str, call: Callable[[], object]) -> None:
        try:
            while True:
                call()
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            ended[name] = error

    with SyncPublisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.2) as publisher:
        handle = publisher.publish(b"x")
        calls: dict[str, Callable[[], object]] = {
            "publish": lambda: publisher.publish(b"x"),
            "publish_many": lambda: publisher.publish_many([Message(b"x")] * 5),
            "wait_confirmed": handle.wait_confirmed,
            "drain": publisher.drain,
        }
        threads = [
            threading.Thread(target=run, args=(f"{name} {number}", call), daemon=True)
            for name, call in calls.items()
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        while publisher.stats.accepted < 50:
            time.sleep(0.01)
    for thread in threads:
        thread.join(GUARD_S)
    assert not any(thread.is_alive() for thread in threads)
    assert {name: type(error) for name, error in ended.items()} == dict.fromkeys(ended, PublisherClosed)
    assert len(ended) == len(threads)
    with pytest.raises(PublisherClosed, match=r"it is in the outbox .*o\.db"):
        handle.wait_confirmed()
    with SyncPublisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.0):
        pass  # nothing is locked


def test_a_publisher_closes_once_however_often_and_by_whom_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "o.db"

    async def main() -> None:
        publisher = Publisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.2)
        await publisher.__aexit__(None, None, None)  # never opened
        async with publisher:
            await publisher.publish(b"x")
            await asyncio.gather(*(publisher.__aexit__(None, None, None) for _ in range(5)))
        assert len(asyncio.all_tasks()) == 1
        async with Publisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.0):
            pass

    asyncio.run(main())
    publisher = SyncPublisher(DEAD, channel="orders", outbox=path, close_timeout_s=0.1)
    publisher.__exit__(None, None, None)
    with publisher:
        threads = [threading.Thread(target=publisher.__exit__, args=(None, None, None)) for _ in range(5)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flyball-publisher")]


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_close_during_opening(tmp_path: Path) -> None:
    """A broker that accepts connections and never says a word."""

    async def main() -> None:
        clients: list[Any] = []
        server = await asyncio.start_server(lambda reader, writer: clients.append((reader, writer)), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        publisher = Publisher(f"amqp://127.0.0.1:{port}/", channel="orders", outbox=tmp_path / "o.db")
        opening = asyncio.create_task(publisher.__aenter__())
        await wait_until(lambda: bool(clients))
        with pytest.raises(PublisherClosed, match="is open already"):
            await publisher.__aenter__()
        await publisher.__aexit__(None, None, None)
        (error,) = await outcomes([opening])
        assert isinstance(error, PublisherClosed)
        assert "closed while it opened" in str(error)
        async with Publisher("memory://", channel="orders", outbox=tmp_path / "o.db", declare="queue"):
            pass  # nothing is locked
        for _, writer in clients:
            writer.close()
        server.close()

    asyncio.run(main())
    threads_by_name = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads_by_name if name.startswith("flyball-publisher")]


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
def test_who_is_cancelled_while_it_opens_has_closed(turns: int, url: str, tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(
            Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue").__aenter__()
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(3):  # an impatient user
            opening.cancel()
            await asyncio.sleep(0)
        with suppress(asyncio.CancelledError):
            await opening
        assert len(asyncio.all_tasks()) == 1
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue"):
            pass  # nothing is locked

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flyball-publisher")]


def test_where_one_target_refuses_the_opening_nothing_of_the_others_is_left(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        clients: list[Any] = []
        server = await asyncio.start_server(lambda reader, writer: clients.append((reader, writer)), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        before = asyncio.all_tasks()
        publisher = Publisher(
            targets=[f"amqp://127.0.0.1:{port}/", url], channel="nobody", outbox=tmp_path / "o.db"
        )
        with pytest.raises(NoSuchChannel):
            await publisher.__aenter__()
        assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()
        for _, writer in clients:
            writer.close()
        server.close()
        async with await connect(url) as broker:
            await broker.declare("nobody")
        publisher = Publisher(url, channel="nobody", outbox=tmp_path / "o.db")
        async with publisher:  # nothing is locked
            pass

    asyncio.run(main())


@pytest.mark.parametrize("channels", [1, 5, 20])
def test_closing_while_messages_of_other_channels_are_read(channels: int, tmp_path: Path) -> None:
    path, url = tmp_path / "o.db", f"sqlite:///{tmp_path / 'broker.db'}?durability=process"
    with SqliteDatabase(path, durability="process") as database:
        for number in range(40):
            handles = [Handle(Message(b"x"), f"channel.{number}", 4, 0) for _ in range(500)]
            Outbox(database).append(handles)

    async def program() -> None:
        async with Publisher(url, channel="channel.0", outbox=path, declare="queue") as publisher:
            while len(publisher._relay.channels) < channels:
                await asyncio.sleep(0)
            raise KeyError("the application's own error")

    async def main() -> None:
        with pytest.raises(KeyError, match="the application's own error"):
            await program()
        assert len(asyncio.all_tasks()) == 1
        async with Publisher(url, channel="channel.0", outbox=path, declare="queue") as publisher:
            await publisher.drain()
        async with await connect(url) as broker:
            depths = [await broker.depth(f"channel.{number}") for number in range(40)]
        assert min(depths) >= 500

    asyncio.run(main())


def test_who_is_cancelled_while_it_closes_has_closed(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        await fill_queue(url)

        async def program() -> None:
            async with Publisher(url, channel="orders", outbox=tmp_path / "o.db") as publisher:
                await publisher.publish(b"x")
                opened.set()

        opened = asyncio.Event()
        running = asyncio.create_task(program())
        await opened.wait()
        await asyncio.sleep(0.1)  # it waits for the confirm
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()  # an impatient user
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(asyncio.all_tasks()) == 1
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", close_timeout_s=0.0):
            pass

    asyncio.run(main())


def test_a_publisher_is_opened_once_unless_the_opening_failed(url: str, outbox: str | None) -> None:
    again = "this publisher is closed: make another one instead of opening this one again"

    async def main() -> None:
        publisher = Publisher(url, channel="orders", outbox=outbox)
        with pytest.raises(NoSuchChannel):
            await publisher.__aenter__()
        async with await connect(url) as broker:
            await broker.declare("orders")
        async with publisher:
            await (await publisher.publish(b"x")).wait_confirmed()
            with pytest.raises(PublisherClosed, match="is open already"):
                await publisher.__aenter__()
        with pytest.raises(PublisherClosed, match=again):
            await publisher.__aenter__()

    asyncio.run(main())
    publisher = SyncPublisher(url, channel="orders", outbox=outbox, declare="queue")
    with publisher, pytest.raises(PublisherClosed, match="is open already"):
        publisher.__enter__()
    with pytest.raises(PublisherClosed, match=again):
        publisher.__enter__()


def test_before_opening_and_after_closing_there_is_one_clear_error(url: str) -> None:
    async def check(publisher: Publisher, reason: str) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: publisher.publish(b"x"),
            lambda: publisher.publish_many([Message(b"x")]),
            publisher.drain,
        ]
        for call in calls:
            with pytest.raises(PublisherClosed, match=reason):
                await call()

    async def main() -> None:
        publisher = Publisher(url, channel="orders", outbox=None, declare="queue")
        await check(publisher, "this publisher is not open yet: use it inside of its")
        with pytest.raises(PublisherClosed, match="not open yet"):
            _ = publisher.stats
        assert (publisher.errors, publisher.problems, publisher.steps()) == ([], [], [])
        async with publisher:
            await publisher.publish(b"x")
        await check(publisher, "this publisher is closed: make another one")
        assert publisher.stats.confirmed == 1

    asyncio.run(main())
    sync = SyncPublisher(url, channel="orders", outbox=None, declare="queue")
    calls: list[Callable[[], object]] = [
        lambda: sync.publish(b"x"),
        lambda: sync.publish_many([Message(b"x")]),
        sync.drain,
    ]
    for call in calls:
        with pytest.raises(PublisherClosed, match="not open yet"):
            call()
    with pytest.raises(PublisherClosed, match="not open yet"):
        _ = sync.stats
    with sync:
        handle = sync.publish(b"x")
    for call in calls:
        with pytest.raises(PublisherClosed, match="is closed: make another one"):
            call()
    handle.wait_confirmed()
    assert sync.stats.confirmed == 1


FORK = """
import os, sys
from flyball import SyncPublisher
from flyball.publisher.handle import PublisherClosed

path = sys.argv[1]
ready, go_on = os.pipe(), os.pipe()
with SyncPublisher("memory://", channel="orders", outbox=path, declare="queue") as publisher:
    handle = publisher.publish(b"parent")
    child = os.fork()
    if child == 0:
        for call in (lambda: publisher.publish(b"child"), publisher.drain):
            try:
                call()
            except PublisherClosed as error:
                os.write(ready[1], f"{error}\\n".encode())
        publisher.__exit__(None, None, None)
        os.write(ready[1], b"left\\n")
        os.read(go_on[0], 1)
        os._exit(0)
    lines = b""
    while not lines.endswith(b"left\\n"):
        lines += os.read(ready[0], 10_000)
    print(lines.decode(), end="")
    publisher.publish(b"parent").wait_confirmed()
with SyncPublisher("memory://", channel="orders", outbox=path, declare="queue"):
    print("opened again while the child lives")
os.write(go_on[1], b"x")
os.waitpid(child, 0)
"""


def test_a_forked_child_is_told_and_leaves_the_parent_s_publisher_alone(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", FORK, str(tmp_path / "o.db")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert done.returncode == 0, done.stderr
    refused, drained, left, again = done.stdout.splitlines()
    assert "was opened by process" in refused
    assert "cannot be used by its child" in refused
    assert refused == drained
    assert (left, again) == ("left", "opened again while the child lives")


def test_a_locked_outbox_is_an_error_of_every_call(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue") as publisher:
            assert isinstance(publisher._outbox, FileOutbox)
            publisher._outbox._sqlite._writer.execute("PRAGMA busy_timeout = 20")
            application = sqlite3.connect(tmp_path / "o.db", isolation_level=None)
            application.execute("BEGIN IMMEDIATE")
            with pytest.raises(Busy, match=r"was locked by another process .* shorten that transaction"):
                await publisher.publish_many([Message(b"x") for _ in range(10)])
            with pytest.raises(Busy):
                await publisher.publish(b"x")
            application.execute("ROLLBACK")
            application.close()
            await (await publisher.publish(b"free")).wait_confirmed()
            assert (publisher.stats.accepted, publisher.stats.refused) == (1, 11)

    asyncio.run(main())


async def count_callbacks(work: Callable[[], Awaitable[object]]) -> int:
    """How many callbacks the event loop runs meanwhile."""
    loop = asyncio.get_running_loop()
    count, call_soon = 0, loop.call_soon

    def counting(*arguments: Any, **options: Any) -> asyncio.Handle:
        nonlocal count
        count += 1
        return call_soon(*arguments, **options)

    loop.call_soon = counting  # type: ignore[assignment, method-assign]
    try:
        await work()
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    return count


def test_many_waiting_tasks_cost_in_proportion_to_their_number_and_are_served_in_order(
    url: str, outbox: str | None, tmp_path: Path
) -> None:
    async def publish(count: int) -> float:
        path = None if outbox is None else tmp_path / f"{count}.db"
        config = OutboxConfig(path, max_bytes=40_000, durability="process")
        async with Publisher(url, channel="orders", outbox=config, declare="queue", buffer=100) as publisher:

            async def publish_all() -> None:
                tasks = [asyncio.create_task(publisher.publish(b"%d" % number)) for number in range(count)]
                handles = await asyncio.gather(*tasks)
                assert [handle.seq for handle in handles] == list(range(1, count + 1))

            return await count_callbacks(publish_all) / count

    async def main() -> None:
        few, many = await publish(1000), await publish(8000)
        assert many < 3 * few

    asyncio.run(main())


def test_a_full_outbox_stores_as_many_together_as_fit(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with await connect(url) as broker:
            await broker.declare("orders", max_bytes=1_000_000)
            await (await broker.sender("orders")).send_batch([Message(bytes(1_000_000))])
        config = OutboxConfig(tmp_path / "o.db", max_bytes=40_000, durability="process")
        async with Publisher(url, channel="orders", outbox=config) as publisher:
            messages = [Message(bytes(100)) for _ in range(1000)]
            publishing = asyncio.create_task(publisher.publish_many(messages))
            while publisher.stats.accepted < 100:
                await asyncio.sleep(0.01)
            assert isinstance(publisher._outbox, FileOutbox)
            append, sizes = publisher._outbox.append, []

            def counting(entries: Sequence[Any]) -> list[int]:
                seqs = append(entries)
                sizes.append(len(entries))
                return seqs

            publisher._outbox.append = counting  # type: ignore[method-assign]
            async with await connect(url) as broker:
                await broker.purge("orders")
            await publishing
        assert len(sizes) < sum(sizes) / 4

    asyncio.run(main())


def test_two_names_of_one_outbox_are_one_outbox(url: str, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "o.db")

    async def main() -> None:
        async with Publisher(url, channel="orders", outbox=tmp_path / "o.db", declare="queue"):
            with pytest.raises(RuntimeError, match=r"another publisher relays the outbox .*o\.db"):
                await Publisher(url, channel="orders", outbox=link).__aenter__()
        async with Publisher(url, channel="orders", outbox=link) as publisher:
            await publisher.publish(b"through the link")
        assert not (tmp_path / "link.db.publisher").exists()
        os.link(tmp_path / "o.db", tmp_path / "hard.db")
        for name in ("o.db", "hard.db"):
            with pytest.raises(StoreError, match=r"has 2 names \(hard links\)"):
                await Publisher(url, channel="orders", outbox=tmp_path / name).__aenter__()

    asyncio.run(main())


def test_only_the_owner_may_read_what_is_in_an_outbox_and_in_a_broker_s_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with SyncPublisher(
            f"sqlite:///{tmp_path / 'broker.db'}", channel="orders", outbox=tmp_path / "o.db", declare="queue"
        ) as publisher:
            publisher.publish(b"secret")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) >= {"o.db", "o.db-wal", "o.db-shm", "o.db.publisher", "broker.db", "broker.db-wal"}
    assert modes == dict.fromkeys(modes, 0o600)
    (tmp_path / "shared.db").touch(mode=0o644)
    with SqliteDatabase(tmp_path / "shared.db"):
        assert (tmp_path / "shared.db").stat().st_mode & 0o777 == 0o644  # whoever made it decides


@pytest.mark.parametrize("path", ["", ":memory:", "memory"])
def test_names_that_mean_memory_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"path of a file, or None for memory, got '{path}'"):
        Publisher("memory://", channel="orders", outbox=path)


def test_a_publisher_is_not_used_in_another_event_loop() -> None:
    publisher = Publisher(f"memory://{uuid.uuid4().hex}", channel="c", declare="queue", outbox=None)
    first = asyncio.new_event_loop()
    try:
        first.run_until_complete(publisher.__aenter__())
        with pytest.raises(InvalidValue, match="must be used in the event loop that opened it"):
            asyncio.run(publisher.publish(b"x"))
        first.run_until_complete(publisher.__aexit__(None, None, None))
    finally:
        first.close()


def test_a_time_to_close_is_not_negative() -> None:
    with pytest.raises(InvalidValue, match="close_timeout_s must be >= 0, got -1"):
        Publisher("memory://x", channel="c", outbox=None, close_timeout_s=-1)
