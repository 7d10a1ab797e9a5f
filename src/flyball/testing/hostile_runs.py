"""Hostile messages at a site, through the real clients, each beside a good one: its neighbours must not notice.

`send_hostile` publishes messages of `hostile.hostile_messages` by `Publisher`, `SyncPublisher`, `enqueue`, a
sender of the port, and over HTTP. `receive_hostile` writes messages of foreign programs with the broker's own
client and lets a `Consumer` read them. The `HostileReport` says what does not hold:

* `lost_neighbours`: good messages that did not arrive, or not as they were;
* `exceptions`: errors other than `InvalidValue`, messages that were accepted and never came, or came with another
  content;
* `reconnects`: connections that were made meanwhile.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from flyball.brokers import Message, connect
from flyball.brokers.port import is_permanent
from flyball.brokers.rabbitmq_stream.codec import encode as encode_stream
from flyball.consumer.consumer import Consumer
from flyball.errors import FlyballError, InvalidValue, require
from flyball.publisher.http import Listener
from flyball.publisher.options import OutboxConfig
from flyball.publisher.publisher import Publisher
from flyball.publisher.sync import SyncPublisher
from flyball.store import enqueue
from flyball.testing import hostile
from flyball.testing.faults import FaultSite
from flyball.testing.hostile import HostileMessage, differences, hostile_messages, is_plain

Way: TypeAlias = Literal["publish", "publish_many", "sync", "enqueue", "send_batch", "http"]
WAYS: tuple[Way, ...] = ("publish", "publish_many", "sync", "enqueue", "send_batch", "http")

_GUARD_S = 120.0
"""Ends a run in which something never comes; nothing is judged by it."""
_QUIET_S = 20.0
_AT_ONCE = 16
_BATCH = 20
_FIRST = 40


@dataclass
class HostileReport:
    """What a run found."""

    site: str
    what: str
    seed: int
    messages: int = 0
    refused: int = 0
    unreadable: int = 0
    lost_neighbours: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    reconnects: int = 0

    @property
    def ok(self) -> bool:
        return not (self.lost_neighbours or self.exceptions or self.reconnects)

    def __str__(self) -> str:
        text = f"{self.what} at {self.site}, seed {self.seed}: {self.messages} messages, {self.refused} refused"
        text += f", {self.unreadable} unreadable, {self.reconnects} reconnects"
        for name in ("lost_neighbours", "exceptions"):
            found = getattr(self, name)
            if found:
                text += f"\n  {len(found)} {name.replace('_', ' ')}:" + "".join(
                    f"\n    {each}" for each in found[:10]
                )
        return text


# --- sending ----------------------------------------------------------------------------------------------------


_ANSWER_S = 60
"""A client asks on another connection whether its broker is alive, which is no reconnection: here it need not."""


def _with_patience(site: FaultSite) -> FaultSite:
    if not site.url.startswith("amqp://"):
        return site
    return replace(site, url=f"{site.url}?answer_timeout_s={_ANSWER_S}")


def send_hostile(site: FaultSite, way: Way, *, seed: int, count: int, folder: Path) -> HostileReport:
    """Publish `count` hostile messages in one of the ways, with a neighbour after each."""
    report = HostileReport(site.name, f"hostile {way}", seed, messages=count)
    asyncio.run(
        _Sending(_with_patience(site), way, seed, count, folder / f"{uuid.uuid4().hex[:8]}.db", report).run()
    )
    return report


class _Sending:
    def __init__(
        self, site: FaultSite, way: Way, seed: int, count: int, outbox: Path, report: HostileReport
    ) -> None:
        self._site, self._way, self._seed, self._count, self._report = site, way, seed, count, report
        self._outbox = outbox
        self._channel = f"hostile.{uuid.uuid4().hex[:8]}"
        self._accepted: dict[str, HostileMessage] = {}
        self._posted: dict[str, bytes] = {}
        self._neighbours: list[str] = []
        self._arrived: dict[str, Message] = {}

    async def run(self) -> None:
        async with await connect(self._site.judge_url) as judge:
            await judge.declare(self._channel, self._site.kind)
            try:
                async with self._open() as send:
                    await send([HostileMessage(-1, (), {"body": b"first", "id": "first"})])
                    await self._await_first()
                    before = self._site.connections_made
                    cases = list(hostile_messages(self._seed, self._count))
                    batches = [cases[at : at + _BATCH] for at in range(0, len(cases), _BATCH)]
                    for at in range(0, len(batches), _AT_ONCE):
                        await asyncio.gather(*(send(batch) for batch in batches[at : at + _AT_ONCE]))
                    await self._collect()
                    self._report.reconnects = self._site.connections_made - before
            finally:
                await judge.delete(self._channel)
                for file in self._outbox.parent.glob(f"{self._outbox.name}*"):
                    file.unlink()
        self._judge()

    # What sends a batch of hostile messages, each with its neighbour, in each of the ways.

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Callable[[Sequence[HostileMessage]], Awaitable[None]]]:
        options: dict[str, Any] = {"channel": self._channel, "outbox": OutboxConfig(self._outbox)}
        if self._way == "send_batch":
            async with await connect(self._site.url) as broker:
                sender = await broker.sender(self._channel)
                yield lambda batch: self._send_batch(sender, batch)
            return
        if self._way == "sync":
            sync = SyncPublisher(self._site.url, **options)
            await asyncio.to_thread(sync.__enter__)
            try:
                yield lambda batch: asyncio.to_thread(self._publish_sync, sync, batch)
            finally:
                await asyncio.to_thread(sync.__exit__, None, None, None)
            return
        async with Publisher(self._site.url, **options) as publisher:
            if self._way == "http":
                async with Listener(publisher) as listener:
                    yield lambda batch: asyncio.to_thread(self._post, listener.port, batch)
            elif self._way == "enqueue":
                yield lambda batch: asyncio.to_thread(self._enqueue, batch)
            elif self._way == "publish_many":
                yield lambda batch: self._publish_many(publisher, batch)
            else:
                yield lambda batch: self._publish(publisher, batch)
            if publisher.stats.rejected:
                self._report.exceptions.append(
                    f"{publisher.stats.rejected} messages were accepted and then rejected"
                )

    def _neighbour(self, case: HostileMessage) -> Message:
        id = f"n-{case.number}"
        self._neighbours.append(id)
        return Message(b"body of " + id.encode(), id)

    def _accept(self, case: HostileMessage, id: object) -> None:
        if case.number < 0:
            return
        self._accepted[str(id)] = case
        if case.must == "refuse":
            self._report.exceptions.append(f"{case} was accepted")

    def _refuse(self, case: HostileMessage, error: BaseException | None) -> None:
        if isinstance(error, InvalidValue):
            self._report.refused += 1
            if case.must == "accept":
                self._report.exceptions.append(f"{case} was refused: {error}")
        else:
            self._report.exceptions.append(f"{case} raised {type(error).__name__}: {_text(error)}")

    async def _publish(self, publisher: Publisher, batch: Sequence[HostileMessage]) -> None:
        async def one(case: HostileMessage) -> None:
            try:
                handle = await publisher.publish(**case.arguments)
            except Exception as error:  # noqa: BLE001 – it is what a run looks for
                self._refuse(case, error)
            else:
                self._accept(case, handle.id)

        async def beside(message: Message) -> None:
            await publisher.publish(message.body, id=message.id)

        # At the same time: they share a commit.
        await asyncio.gather(*(work for case in batch for work in (one(case), beside(self._neighbour(case)))))

    async def _publish_many(self, publisher: Publisher, batch: Sequence[HostileMessage]) -> None:
        for case in batch:
            beside = self._neighbour(case)
            try:
                handle, _ = await publisher.publish_many([Message(**case.arguments), beside])
            except Exception as error:  # noqa: BLE001
                self._refuse(case, error)
                self._neighbours.remove(beside.id)  # refused as a whole, before anything was accepted
            else:
                self._accept(case, handle.id)

    def _publish_sync(self, publisher: SyncPublisher, batch: Sequence[HostileMessage]) -> None:
        for case in batch:
            try:
                handle = publisher.publish(**case.arguments)
            except Exception as error:  # noqa: BLE001
                self._refuse(case, error)
            else:
                self._accept(case, handle.id)
            beside = self._neighbour(case)
            publisher.publish(beside.body, id=beside.id)

    def _enqueue(self, batch: Sequence[HostileMessage]) -> None:
        connection = sqlite3.connect(self._outbox, timeout=_GUARD_S)
        try:
            for case in batch:
                with connection:
                    try:
                        enqueue(connection, self._channel, Message(**case.arguments))
                    except Exception as error:  # noqa: BLE001
                        self._refuse(case, error)
                    else:
                        self._accept(case, case.arguments["id"])
                    enqueue(connection, self._channel, self._neighbour(case))
        finally:
            connection.close()

    async def _send_batch(self, sender: Any, batch: Sequence[HostileMessage]) -> None:
        messages = []
        for case in batch:
            messages += [Message(**case.arguments), self._neighbour(case)]
        try:
            results = await sender.send_batch(messages)
        except Exception as error:  # noqa: BLE001
            self._report.exceptions.append(f"send_batch raised {type(error).__name__}: {_text(error)}")
            return
        for case, result, beside in zip(batch, results[::2], results[1::2], strict=True):
            if result.error is None:
                self._accept(case, result.id)
            elif not is_permanent(result.error):
                self._report.exceptions.append(f"{case} may be sent again, says {type(result.error).__name__}")
            else:
                self._report.refused += 1
            if beside.error is not None:
                self._report.exceptions.append(f"beside {case}: {_text(beside.error)}")

    def _post(self, port: int, batch: Sequence[HostileMessage]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_GUARD_S)
        try:
            for case in batch:
                headers = {
                    name: value
                    for name, field_name in (
                        ("X-Message-Id", "id"),
                        ("X-Message-Key", "key"),
                        ("Content-Type", "content_type"),
                        ("X-Message-Urgency", "event_time_s"),
                    )
                    if isinstance(value := case.arguments.get(field_name), str | bytes) and _fits_http(value)
                }
                body = case.arguments["body"] if type(case.arguments["body"]) is bytes else b"h-%d" % case.number
                beside = self._neighbour(case)
                for content, fields in ((body, headers), (beside.body, {"X-Message-Id": beside.id})):
                    try:
                        connection.request("POST", "/publish", content, fields)
                        answer = connection.getresponse()
                        document = json.loads(answer.read())
                    except (OSError, ValueError, http.client.HTTPException) as error:
                        self._report.exceptions.append(f"{case} over HTTP: {type(error).__name__}: {error}")
                        connection.close()
                        continue
                    if answer.status not in (202, 400, 413, 431):
                        self._report.exceptions.append(f"{case} over HTTP: status {answer.status}")
                    if answer.status == 202:
                        self._posted[document["id"]] = content
                    else:
                        self._report.refused += 1
        finally:
            connection.close()

    # What arrived.

    async def _await_first(self) -> None:
        async with asyncio.timeout(_GUARD_S):
            while "n--1" not in self._arrived:
                await self._receive(0.2)
        self._neighbours.remove("n--1")

    async def _collect(self) -> None:
        expected = {*self._neighbours, *self._accepted, *self._posted}
        quiet_since_s, count = time.monotonic(), -1
        while not expected <= set(self._arrived) and time.monotonic() < quiet_since_s + _QUIET_S:
            await self._receive(0.2)
            if len(self._arrived) != count:
                quiet_since_s, count = time.monotonic(), len(self._arrived)

    async def _receive(self, timeout_s: float) -> None:
        async with await connect(self._site.judge_url) as broker:
            if self._site.kind == "log":
                first, end = await broker.bounds(self._channel, 0)
                async for records in broker.read(self._channel, 0, first, end):
                    self._arrived.update((record.message.id, record.message) for record in records)
                await asyncio.sleep(timeout_s)
                return
            receiver = await broker.receiver(self._channel, window=1000)
            while deliveries := await receiver.receive(1000, timeout_s=timeout_s):
                self._arrived.update((each.message.id, each.message) for each in deliveries)
                await receiver.ack(*deliveries)
            await receiver.close()

    def _judge(self) -> None:
        report = self._report
        for id in self._neighbours:
            message = self._arrived.get(id)
            if message is None or message.body != b"body of " + id.encode():
                report.lost_neighbours.append(id)
        for id, body in self._posted.items():
            posted = self._arrived.get(id)
            if posted is None or posted.body != body:
                report.exceptions.append(f"{id} got 202 and did not arrive as it was")
        for id, case in self._accepted.items():
            arrived = self._arrived.get(id)
            if arrived is None:
                report.exceptions.append(f"{case} was accepted and did not arrive")
            elif changed := _changes(case, arrived):
                report.exceptions.append(f"{case} arrived with another {', '.join(changed)}")
            elif not is_plain(arrived):
                report.exceptions.append(f"{case} arrived with values of other types")


def _changes(case: HostileMessage, arrived: Message) -> list[str]:
    try:
        return differences(case.arguments, arrived)
    except Exception as error:  # noqa: BLE001 – a value that should not have been accepted
        return [f"type ({type(error).__name__})"]


def _text(error: BaseException | None) -> str:
    return f"{error}"[:200]


def _fits_http(value: str | bytes) -> bool:
    """Whether a client can write it into a header at all."""
    if isinstance(value, str):
        try:
            value = value.encode("latin-1")
        except UnicodeError:
            return False
    return not any(sign in value for sign in (b"\r", b"\n")) and len(value) < 10_000


# --- receiving --------------------------------------------------------------------------------------------------


def receive_hostile(site: FaultSite, *, seed: int, count: int) -> HostileReport:
    """Let a foreign program write `count` messages, each beside a good one, and a `Consumer` read them all."""
    report = HostileReport(site.name, "foreign messages", seed, messages=count)
    try:
        asyncio.run(_receive_hostile(_with_patience(site), seed, count, report))
    except Exception as error:  # noqa: BLE001 – it is what a run looks for
        report.exceptions.append(f"the consumer ended with {type(error).__name__}: {_text(error)}")
    return report


async def _receive_hostile(site: FaultSite, seed: int, count: int, report: HostileReport) -> None:
    channel = f"foreign.{uuid.uuid4().hex[:8]}"
    dead_channel = f"{channel}.dead"
    handled: dict[str, Message] = {}
    total = 0

    async def handle(message: Message) -> None:
        nonlocal total
        total += 1
        handled[message.id] = message
        if not is_plain(message):
            report.exceptions.append(f"{message!r:.300} has values of other types")

    async with await connect(site.judge_url) as judge:
        await judge.declare(channel, site.kind)
        generate, write = _FOREIGN[site.name]
        messages = list(enumerate(generate(seed, count)))
        where: dict[str, Any] = {"queue": channel}
        if site.kind == "log":
            where = {"channel": channel, "group": "workers"}
        neighbours: list[str] = []
        try:
            async with Consumer(site.url, handler=handle, retries=0, **where) as consumer:

                def done() -> int:
                    return total + consumer.stats.dead_lettered + consumer.stats.repeats

                # The first ones open what is opened once.
                for part in (messages[:_FIRST], messages[_FIRST:]):
                    made_before = site.connections_made
                    neighbours += await write(site, channel, part)
                    if not await _reach(done, 2 * len(neighbours)):
                        report.exceptions.append(f"{done()} of {2 * len(neighbours)} came, then none")
                        break
                report.reconnects = site.connections_made - made_before
                report.unreadable = consumer.stats.dead_lettered
            report.lost_neighbours += [
                id for id in neighbours if id not in handled or handled[id].body != b"body of " + id.encode()
            ]
            await _check_dead_letters(site, dead_channel, report)
        finally:
            for name in (channel, dead_channel):
                with suppress(FlyballError):
                    await judge.delete(name)


async def _reach(count: Callable[[], int], goal: int) -> bool:
    """Wait until the count is reached; False: it has not changed for long."""
    quiet_since_s, seen = time.monotonic(), -1
    while (now := count()) < goal:
        if now != seen:
            quiet_since_s, seen = time.monotonic(), now
        if time.monotonic() > quiet_since_s + _GUARD_S / 4:
            return False
        await asyncio.sleep(0.02)
    return True


async def _check_dead_letters(site: FaultSite, channel: str, report: HostileReport) -> None:
    """Every unreadable message is among the dead letters, with the reason."""
    if not report.unreadable:
        return
    letters: list[Message] = []
    async with await connect(site.judge_url) as broker:
        if site.kind == "log":
            first, end = await broker.bounds(channel, 0)
            async for records in broker.read(channel, 0, first, end):
                letters += [record.message for record in records]
        else:
            receiver = await broker.receiver(channel, window=1000)
            while len(letters) < report.unreadable and (
                deliveries := await receiver.receive(1000, timeout_s=_QUIET_S)
            ):
                letters += [delivery.message for delivery in deliveries]
                await receiver.ack(*deliveries)
    if len(letters) != report.unreadable:
        report.exceptions.append(f"{report.unreadable} were dead-lettered, {len(letters)} dead letters are stored")
    report.exceptions += [
        f"{letter!r:.200} has no reason" for letter in letters if not letter.headers.get("flyball-error")
    ]


def _neighbour(number: int) -> Message:
    id = f"n-{number}"
    return Message(b"body of " + id.encode(), id)


async def _write_amqp(site: FaultSite, queue: str, messages: Sequence[tuple[int, Any]]) -> list[str]:
    pika: Any = require("pika", "rabbitmq")

    class Raw(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
        """Properties that are on the wire exactly as given: pika cannot write all that other clients write."""

        def __init__(self, flags: int, content: bytes) -> None:
            super().__init__()
            self._flags, self._content = flags, content

        def encode(self) -> list[bytes]:
            return [self._flags.to_bytes(2), self._content]

    def write() -> list[str]:
        connection = pika.BlockingConnection(pika.URLParameters(site.judge_url))
        channel = connection.channel()
        channel.confirm_delivery()
        ids = []
        for number, foreign in messages:
            channel.basic_publish("", queue, foreign.body, Raw(foreign.flags, foreign.properties))
            beside = _neighbour(number)
            channel.basic_publish("", queue, beside.body, pika.BasicProperties(message_id=beside.id))
            ids.append(beside.id)
        connection.close()
        return ids

    return await asyncio.to_thread(write)


async def _write_kafka(site: FaultSite, topic: str, messages: Sequence[tuple[int, Any]]) -> list[str]:
    kafka = require("confluent_kafka", "kafka")

    def write() -> list[str]:
        producer = kafka.Producer({"bootstrap.servers": urlsplit(site.judge_url).netloc})
        ids = []
        for number, foreign in messages:
            stamp = {} if foreign.timestamp_ms is None else {"timestamp": foreign.timestamp_ms}
            producer.produce(
                topic, foreign.value, foreign.key, headers=list(foreign.headers), partition=0, **stamp
            )
            beside = _neighbour(number)
            producer.produce(topic, beside.body, headers=[("message-id", beside.id)], partition=0)
            ids.append(beside.id)
            producer.poll(0)
        producer.flush()
        return ids

    return await asyncio.to_thread(write)


async def _write_stream(site: FaultSite, log: str, messages: Sequence[tuple[int, Any]]) -> list[str]:
    rstream = require("rstream", "rabbitmq")
    where = urlsplit(site.judge_url)
    async with rstream.Producer(where.hostname, where.port, username="guest", password="guest") as producer:
        ids = []
        for number, foreign in messages:
            beside = _neighbour(number)
            ids.append(beside.id)
            if number != messages[-1][0]:
                await producer.send_batch(f"{log}-0", [foreign, encode_stream(beside)])
            else:  # confirmed, and so is all before it
                await producer.send_wait(f"{log}-0", foreign)
                await producer.send_wait(f"{log}-0", encode_stream(beside))
    return ids


async def _write_sqlite(site: FaultSite, channel: str, messages: Sequence[tuple[int, Any]]) -> list[str]:
    connection = sqlite3.connect(urlsplit(site.judge_url).path[1:], timeout=_GUARD_S, isolation_level=None)
    # A trigger replaces a value in the transaction that stores it: a receiver sees nothing else.
    connection.execute("CREATE TABLE foreign_value (data BLOB)")
    connection.execute("INSERT INTO foreign_value VALUES (NULL)")
    connection.execute(
        "CREATE TRIGGER replace_value AFTER INSERT ON broker_payloads "
        "WHEN (SELECT name FROM broker_channels c JOIN broker_batches b ON b.channel = c.id "
        f"WHERE b.id = NEW.batch) = '{channel}' "
        "BEGIN UPDATE broker_payloads SET data = coalesce((SELECT data FROM foreign_value), data) "
        "WHERE batch = NEW.batch; END"
    )
    ids = []
    try:
        async with await connect(site.judge_url) as broker:
            sender = await broker.sender(channel)
            for number, foreign in messages:
                beside = _neighbour(number)
                ids.append(beside.id)
                for value, message in ((foreign, Message(b"to be replaced")), (None, beside)):
                    connection.execute("UPDATE foreign_value SET data = ?", (value,))
                    await sender.send_batch([message])
    finally:
        connection.execute("DROP TRIGGER replace_value")
        connection.execute("DROP TABLE foreign_value")
        connection.close()
    return ids


_Write: TypeAlias = Callable[[FaultSite, str, Sequence[tuple[int, Any]]], Awaitable[list[str]]]
_FOREIGN: dict[str, tuple[Callable[[int, int], Iterator[Any]], _Write]] = {
    "rabbitmq": (hostile.foreign_amqp, _write_amqp),
    "kafka": (hostile.foreign_kafka, _write_kafka),
    "rabbitmq_stream": (hostile.foreign_stream, _write_stream),
    "sqlite": (hostile.foreign_sqlite, _write_sqlite),
}
FOREIGN_SITES = tuple(_FOREIGN)
"""Sites to which a foreign program can write: all but memory."""
