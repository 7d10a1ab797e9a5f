"""Messages are exchanged both ways with plain pika and FastStream programs that know nothing of Flyball."""

from __future__ import annotations

import asyncio
import struct
import uuid
from typing import Any

import pika
import pytest
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.rabbit.annotations import RabbitMessage

from flyball.brokers import Message, connect
from flyball.brokers.port import NoSuchChannel
from flyball.futures import wait_at_most


@pytest.fixture
def queue(amqp_url: str) -> Any:
    """A queue that a plain program made: durable, bound to nothing of ours."""
    name = f"theirs.{uuid.uuid4().hex[:8]}"
    with _plain(amqp_url) as connection:
        connection.channel().queue_declare(name, durable=True)
    yield name
    with _plain(amqp_url) as connection:
        connection.channel().queue_delete(name)


def _plain(url: str) -> Any:
    return pika.BlockingConnection(pika.URLParameters(url.partition("?")[0]))


def test_from_plain_pika(amqp_url: str, queue: str) -> None:
    with _plain(amqp_url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(
            message_id="order-1",
            content_type="text/plain",
            timestamp=1_700_000_000,
            headers={"city": "lyon", "count": 3, "big": 2**40, "raw": b"\xff\x00", "yes": True, "list": [1, 2]},
        )
        channel.basic_publish("", queue, b"with everything", properties)
        channel.basic_publish("", queue, b"bare")
        channel.basic_publish("", queue, b"the same id again", pika.BasicProperties(message_id="order-1"))

    async def scenario() -> None:
        async with await connect(amqp_url) as broker:
            receiver = await broker.receiver(queue, window=1)
            got = []
            for _ in range(3):
                (delivery,) = await receiver.receive(1, timeout_s=20)
                await receiver.ack(delivery)
                got.append(delivery.message)
            first, bare, again = got
            assert (first.id, first.body, first.content_type) == ("order-1", b"with everything", "text/plain")
            assert first.event_time_s == 1_700_000_000.0
            expected = {
                "city": "lyon",
                "count": 3,
                "big": 2**40,
                "raw": b"\xff\x00",
                "yes": True,
                "list": "[1, 2]",
            }
            assert dict(first.headers) == expected
            assert type(first.headers["big"]) is int
            assert bare.body == b"bare"
            assert bare.id
            # Their ids may mean anything: only repeats of what we sent ourselves are dropped.
            assert (again.id, again.body) == ("order-1", b"the same id again")

    asyncio.run(scenario())


class RawProperties(pika.BasicProperties):  # type: ignore[misc]  # pika has no types here
    """Properties that pika itself would not write."""

    def __init__(self, flags: int, raw: bytes) -> None:
        super().__init__()
        self._flags, self._raw = flags, raw

    def encode(self) -> list[bytes]:
        return [struct.pack(">H", self._flags), self._raw]


def _headers(*fields: tuple[bytes, bytes]) -> bytes:
    table = b"".join(bytes((len(name),)) + name + value for name, value in fields)
    return struct.pack(">I", len(table)) + table


@pytest.mark.parametrize("body_bytes", [10, 300_000])
def test_headers_of_any_kind_are_read_and_end_no_connection(amqp_url: str, queue: str, body_bytes: int) -> None:
    nested: Any = {"a": [1, {"b": None}]}
    for _ in range(20):
        nested = {"deeper": nested}
    written = [
        RawProperties(0x2000, _headers((b"sent", b"T" + struct.pack(">Q", 1_700_000_000_000)))),  # in milliseconds
        RawProperties(0x2000, _headers((b"sent", b"T" + struct.pack(">Q", 1_700_000_000)))),
        RawProperties(0x2000, _headers((b"price", b"D" + struct.pack(">Bi", 2, 1250)))),
        RawProperties(
            0x2000, _headers((b"a", b"b\xff"), (b"b", b"B\xff"), (b"c", b"s\xff\xfe"), (b"d", b"u\xff\xfe"))
        ),
        RawProperties(0x2000, _headers((b"not \xff text", b"S" + struct.pack(">I", 1) + b"\xff"))),
        RawProperties(0x8000 | 0x0080, b"\x02\xff\xfe" + b"\x10" + bytes(range(0xF0, 0x100))),
        pika.BasicProperties(headers={"nested": nested, "none": None, "list": [1, "x"]}),
        pika.BasicProperties(timestamp=1_700_000_000_000),
    ]
    with _plain(amqp_url) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for properties in written:
            channel.basic_publish("", queue, bytes(body_bytes), properties)

    async def scenario() -> None:
        async with await connect(amqp_url) as broker:
            receiver = await broker.receiver(queue)
            losses: list[None] = []
            receiver._link.on_lost.append(lambda: losses.append(None))  # type: ignore[attr-defined]
            got: list[Message] = []
            while len(got) < len(written):
                deliveries = await receiver.receive(timeout_s=20)
                assert deliveries
                assert [delivery.unreadable for delivery in deliveries] == [None] * len(deliveries)
                await receiver.ack(*deliveries)
                got += [delivery.message for delivery in deliveries]
            assert [len(message.body) for message in got] == [body_bytes] * len(written)
            assert got[0].headers == {"sent": 1_700_000_000_000}
            assert got[1].headers == {"sent": "2023-11-14 22:13:20+00:00"}
            assert got[2].headers == {"price": "12.50"}
            assert got[3].headers == {"a": -1, "b": 255, "c": -2, "d": 65534}
            assert list(got[4].headers.values()) == [b"\xff"]
            assert got[5].id == bytes(range(0xF0, 0x100)).hex()
            assert (got[6].headers["none"], got[6].headers["list"]) == (b"", "[1, 'x']")
            assert got[7].event_time_s == 1_700_000_000_000.0
            assert losses == []

    asyncio.run(scenario())


def test_to_plain_pika(amqp_url: str, queue: str) -> None:
    message = Message(b"hello", key=b"\x00k", headers={"city": "lyon", "n": 7}, content_type="text/plain")

    async def scenario() -> None:
        async with await connect(amqp_url) as broker:
            sender = await broker.sender(queue)
            (result,) = await sender.send_batch([message])
            assert result.ok
            group = await broker.subscribe(queue, "watchers")  # a group hears what goes to their queue, too
            await sender.send_batch([message])
            (heard,) = await group.receive(timeout_s=20)
            assert (heard.message.id, heard.channel) == (message.id, queue)
            await group.ack(heard)

    asyncio.run(scenario())
    with _plain(amqp_url) as connection:
        method, properties, body = connection.channel().basic_get(queue, auto_ack=True)
        assert method.message_count == 1
    assert body == b"hello"
    assert (properties.message_id, properties.content_type) == (message.id, "text/plain")
    assert properties.delivery_mode == 2
    assert properties.headers["city"] == "lyon"
    assert properties.headers["n"] == 7


def test_a_queue_that_a_plain_program_makes_later_is_found(amqp_url: str) -> None:
    name = f"later.{uuid.uuid4().hex[:8]}"

    async def scenario() -> None:
        async with await connect(amqp_url) as broker:
            sender = await broker.sender(name)
            (result,) = await sender.send_batch([Message(b"too early")])
            assert isinstance(result.error, NoSuchChannel)
            with _plain(amqp_url) as connection:
                connection.channel().queue_declare(name)  # not even durable
            (result,) = await sender.send_batch([Message(b"in time")])
            assert result.ok
            await broker.declare(name)  # exists: that is all that was asked for
            receiver = await broker.receiver(name)
            (delivery,) = await receiver.receive(timeout_s=20)
            assert delivery.message.body == b"in time"
            await broker.delete(name)

    asyncio.run(scenario())


def test_faststream_both_ways(amqp_url: str, queue: str) -> None:
    async def scenario() -> None:
        theirs = RabbitBroker(amqp_url.partition("?")[0], logger=None)
        heard: asyncio.Queue[tuple[str, Any, str]] = asyncio.Queue()
        answers = f"{queue}.answers"

        @theirs.subscriber(RabbitQueue(queue, durable=True))
        async def handle(body: dict[str, int], message: RabbitMessage) -> None:
            await heard.put((str(message.message_id), body, str(message.headers["city"])))
            await theirs.publish({"twice": 2 * body["value"]}, queue=answers, message_id="answer-1")

        async with await connect(amqp_url) as broker:
            await broker.declare(answers)
            receiver = await broker.receiver(answers)
            await theirs.start()
            try:
                sender = await broker.sender(queue)
                question = Message(b'{"value": 21}', headers={"city": "lyon"}, content_type="application/json")
                (result,) = await sender.send_batch([question])
                assert result.ok
                assert await wait_at_most(heard.get(), 20) == (question.id, {"value": 21}, "lyon")
                (answer,) = await receiver.receive(timeout_s=20)
                await receiver.ack(answer)
                assert answer.message.body in (b'{"twice": 42}', b'{"twice":42}')
                assert answer.message.id == "answer-1"
                assert answer.message.content_type == "application/json"
            finally:
                await theirs.stop()
            await broker.delete(answers)

    asyncio.run(scenario())
