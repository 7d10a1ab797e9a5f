"""Sending to RabbitMQ beyond a confirm: slow links, full queues and groups, queues that others declare again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pika
import pytest

from flyball.brokers import Broker, Message, Receiver, SendResult, connect
from flyball.brokers.port import Blocked, NoSuchChannel, is_permanent
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from tests.rabbitmq_nodes import VERSIONS


@pytest.fixture(params=VERSIONS)
def node(request: pytest.FixtureRequest) -> RabbitMqNode:
    chosen: RabbitMqNode = request.getfixturevalue("rabbitmq" if request.param is None else "rabbitmq_4")
    return chosen


def _url(node: RabbitMqNode, port: int | None = None, **options: object) -> str:
    url = node.amqp_url if port is None else node.amqp_url.replace(str(node.ports.amqp), str(port))
    return url + "?" + "&".join(f"{name}={value}" for name, value in options.items())


def _name(what: str) -> str:
    return f"{what}.{uuid.uuid4().hex}"


def _messages(count: int, size: int = 10) -> list[Message]:
    return [Message(bytes(size)) for _ in range(count)]


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def _delete_group(broker: Broker, pattern: str, group: str) -> None:
    await broker.delete(f"flyball-group:{group}:{pattern}")


async def _take_all(receiver: Receiver) -> list[str]:
    got: list[str] = []
    while batch := await receiver.receive(500, timeout_s=5.0):
        await receiver.ack(*batch)
        got += [delivery.message.id for delivery in batch]
    return got


# --- slow links -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "bytes_per_s", "options"),
    [
        (1_500_000, 500_000, {}),
        # It takes three times as long as the time-out, as 8 MB at 1 Mbit/s with the default of 30 s.
        (1_200_000, 100_000, {"blocked_timeout_s": 4}),
    ],
)
def test_what_is_slowly_on_its_way_is_waited_for(
    rabbitmq: RabbitMqNode, size: int, bytes_per_s: int, options: dict[str, object]
) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        name = _name("slow")
        async with (
            await connect(_url(rabbitmq)) as broker,
            await connect(_url(rabbitmq, proxy.port, **options)) as slow,
        ):
            await broker.declare(name)
            sender = await slow.sender(name)
            (result,) = await sender.send_batch(_messages(1, size))
            assert result.error is None
            assert await broker.depth(name) == 1
            await broker.delete(name)

    with FaultProxy(rabbitmq.ports.amqp, bytes_per_s=bytes_per_s) as proxy:
        asyncio.run(scenario(proxy))


def test_what_a_proxy_has_taken_and_passes_on_slowly_is_waited_for(rabbitmq: RabbitMqNode) -> None:
    """Nothing shows that it moves; but the server answers on another connection."""

    async def scenario(proxy: FaultProxy) -> None:
        name = _name("buffered")
        async with await connect(_url(rabbitmq)) as broker, await connect(_url(rabbitmq, proxy.port)) as slow:
            await broker.declare(name)
            sender: Any = await slow.sender(name)
            link = sender._link
            written = link.written_bytes
            proxy.stall()
            sending = asyncio.create_task(sender.send_batch(_messages(1, 4_000_000)))
            await _until(lambda: written + 4_000_000 < link.written_bytes == link.delivered_bytes)
            proxy.set_bandwidth(1_500_000)
            proxy.flow()
            (result,) = await sending
            assert result.error is None
            assert await broker.depth(name) == 1
            await broker.delete(name)

    with FaultProxy(rabbitmq.ports.amqp) as proxy:
        asyncio.run(scenario(proxy))


# --- one message of many --------------------------------------------------------------------------------------


def test_a_bad_message_late_in_a_large_batch_leaves_the_earlier_ones_confirmed(rabbitmq: RabbitMqNode) -> None:
    async def scenario() -> None:
        name = _name("late")
        async with await connect(_url(rabbitmq)) as broker:
            await broker.declare(name)
            sender = await broker.sender(name)
            messages = _messages(600)
            messages[300] = Message(b"", headers={"name": "\udcff"})
            results = await sender.send_batch(messages)
            assert [at for at, result in enumerate(results) if not result.ok] == [300]
            assert is_permanent(results[300].error)
            assert await broker.depth(name) == 599
            await broker.delete(name)

    asyncio.run(scenario())


# --- full queues ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_group_gets_one_copy_of_what_a_full_queue_refuses(node: RabbitMqNode, queue_type: str) -> None:
    async def scenario() -> None:
        name = _name("full")
        url = _url(node, queue_type=queue_type, blocked_timeout_s=1, dedup_ids=0)
        async with await connect(url) as broker:
            await broker.declare(name, max_bytes=10_000)
            group = await broker.subscribe(name, "audit", window=1000)
            sender = await broker.sender(name)
            first = _messages(1, 1000)
            results = await sender.send_batch(first)
            while all(result.ok for result in results):  # until it is full
                first += _messages(1, 1000)
                results = await sender.send_batch(first[-1:])
            later = _messages(50, 100)
            for _ in range(2):  # as a publisher does
                results = await sender.send_batch(later)
                assert {type(result.error) for result in results} == {Blocked}
            await broker.purge(name)
            more = [*first[-1:], *later]
            while not all(result.ok for result in results):
                await broker.purge(name)
                results = await sender.send_batch(more)
            assert sorted(await _take_all(group)) == sorted(message.id for message in (*first, *later))
            await group.close()
            await _delete_group(broker, name, "audit")
            await broker.delete(name)

    asyncio.run(scenario())


def test_a_group_that_is_limited_by_a_policy_misses_nothing_after_the_queue_was_full(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        name, policy = _name("limited"), _name("policy")
        async with await connect(_url(node, blocked_timeout_s=1, dedup_ids=0)) as broker:
            await broker.declare(name, max_bytes=10_000)
            group = await broker.subscribe(name, "audit", window=1)
            sender = await broker.sender(name)
            sent: list[Message] = []
            results: list[SendResult] = []
            while all(result.ok for result in results):
                sent += _messages(1, 1000)
                results = await sender.send_batch(sent[-1:])
            while not all(result.ok for result in results):
                await broker.purge(name)
                results = await sender.send_batch(sent[-1:])
            limit = '{"max-length": 50, "overflow": "reject-publish"}'
            pattern = f"^flyball-group:audit:{name}$"
            await asyncio.to_thread(node.control, "set_policy", "--apply-to", "queues", policy, pattern, limit)
            await asyncio.to_thread(_fill, node, f"flyball-group:audit:{name}")
            sent += _messages(5)
            assert {type(result.error) for result in await sender.send_batch(sent[-5:])} == {Blocked}
            await asyncio.to_thread(node.control, "clear_policy", policy)
            while not all(result.ok for result in await sender.send_batch(sent[-5:])):
                await broker.purge(name)
            group.set_window(1000)
            assert {message.id for message in sent} <= set(await _take_all(group))
            assert await broker.depth(name) >= 5
            await group.close()
            await _delete_group(broker, name, "audit")
            await broker.delete(name)

    asyncio.run(scenario())


def _fill(node: RabbitMqNode, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url + "%2F")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with suppress(pika.exceptions.NackError):
            while True:
                channel.basic_publish("", queue, b"filler")


# --- queues of other programs ---------------------------------------------------------------------------------


def _other_program(node: RabbitMqNode, *, delete: bool = True, declare: bool = True, name: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url + "%2F")) as connection:
        channel = connection.channel()
        if delete:
            channel.queue_delete(name)
        if declare:
            channel.queue_declare(name, durable=True)


def test_a_queue_that_another_program_declares_again_gets_what_is_confirmed(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        name = _name("again")
        async with await connect(_url(node, dedup_ids=0)) as broker:
            await asyncio.to_thread(_other_program, node, delete=False, name=name)
            group = await broker.subscribe(name, "audit", window=10_000)
            sender = await broker.sender(name)
            confirmed: list[str] = []
            for _ in range(3):
                await asyncio.to_thread(_other_program, node, name=name)
                results = await sender.send_batch(_messages(300))
                assert all(result.ok for result in results)
                assert await broker.depth(name) == 300
                confirmed += [result.id for result in results]
            assert set(await _take_all(group)) == set(confirmed)
            await group.close()
            await _delete_group(broker, name, "audit")
            await broker.delete(name)

    asyncio.run(scenario())


def test_queues_that_are_declared_again_under_load_get_what_is_confirmed(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        name = _name("load")
        async with await connect(_url(node, dedup_ids=0)) as broker:
            await asyncio.to_thread(_other_program, node, delete=False, name=name)
            group = await broker.subscribe(name, "audit", window=100)
            sender = await broker.sender(name)
            after: list[SendResult] = []  # of calls that began after the queue was there again
            declared = False

            async def send(count: int) -> None:
                for _ in range(count):
                    begun_after = declared
                    results = await sender.send_batch(_messages(20))
                    if begun_after:
                        after.extend(result for result in results if result.ok)

            sending = asyncio.gather(send(60), send(60))
            await asyncio.to_thread(_other_program, node, name=name)
            declared = True
            await sending
            await asyncio.gather(send(5), send(5))
            assert after
            receiver = await broker.receiver(name, window=10_000)
            assert {result.id for result in after} <= set(await _take_all(receiver))
            await group.close()
            await _delete_group(broker, name, "audit")
            await broker.delete(name)

    asyncio.run(scenario())


def test_a_queue_that_was_missing_for_a_while_is_found_although_a_group_takes_everything(
    node: RabbitMqNode,
) -> None:
    async def scenario() -> None:
        name = _name("missing")
        async with await connect(_url(node)) as broker:
            group = await broker.subscribe(name, "audit")
            sender = await broker.sender(name)
            assert all(result.ok for result in await sender.send_batch(_messages(1)))
            with pytest.raises(NoSuchChannel):
                await broker.depth(name)
            await asyncio.to_thread(_other_program, node, delete=False, name=name)
            while not await broker.depth(name):
                assert all(result.ok for result in await sender.send_batch(_messages(1)))
            await asyncio.to_thread(_other_program, node, declare=False, name=name)
            assert all(result.ok for result in await sender.send_batch(_messages(1)))  # the group takes it
            await asyncio.to_thread(_other_program, node, delete=False, name=name)
            while not await broker.depth(name):
                assert all(result.ok for result in await sender.send_batch(_messages(1)))
            await group.close()
            await _delete_group(broker, name, "audit")
            await broker.delete(name)

    asyncio.run(scenario())
