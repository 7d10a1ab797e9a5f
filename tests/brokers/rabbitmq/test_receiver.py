"""What is parked, and what goes back: on queues that count deliveries, and beside other consumers."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flyball.brokers import Broker, Message, connect
from flyball.brokers.rabbitmq.policy import may_return
from flyball.errors import InvalidValue
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode


def _url(node: RabbitMqNode, **options: object) -> str:
    return node.url + "&" + "&".join(f"{name}={value}" for name, value in options.items())


def _messages(count: int, body: bytes = b"x") -> list[Message]:
    return [Message(body) for _ in range(count)]


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


@asynccontextmanager
async def quorum(
    node: RabbitMqNode, messages: list[Message], **options: object
) -> AsyncIterator[tuple[Broker, str]]:
    name = f"counted.{uuid.uuid4().hex}"
    async with await connect(_url(node, queue_type="quorum", **options)) as broker:
        await broker.declare(name)
        sender = await broker.sender(name)
        assert all(result.ok for result in await sender.send_batch(messages))
        yield broker, name
        await broker.delete(name)


def test_a_message_goes_back_at_most_once_and_never_near_its_limit() -> None:
    assert may_return(redelivered=False, attempt=1)
    assert not may_return(redelivered=True, attempt=2)
    assert not may_return(redelivered=False, attempt=4, limit=5)
    assert may_return(redelivered=False, attempt=1, limit=3)
    assert may_return(redelivered=True)  # a queue that does not count


@pytest.mark.parametrize("seed", [3])
def test_at_most_one_window_is_parked_beside_the_one_in_use(rabbitmq: RabbitMqNode, seed: int) -> None:
    chosen = random.Random(seed)

    async def scenario() -> None:
        messages = _messages(900)
        async with quorum(rabbitmq, messages) as (broker, name):
            receiver: Any = await broker.receiver(name, window=2)
            receiver.count_round_trip()
            attempts: Counter[int | None] = Counter()
            loads: list[tuple[int, int]] = []  # (messages from the broker, window)

            async def settle(deliveries: list[Any]) -> None:
                await asyncio.sleep(chosen.uniform(0.0, 0.02))
                await receiver.ack(*deliveries)

            async def consume(count: int) -> None:
                working: set[asyncio.Task[None]] = set()
                while count > 0:
                    got = await receiver.receive(count, timeout_s=60)
                    assert got
                    count -= len(got)
                    attempts.update(delivery.attempt for delivery in got)
                    loads.append((receiver.parked + receiver.in_flight, receiver.window))
                    working.add(asyncio.create_task(settle(got)))
                await asyncio.gather(*working)

            window = 2
            for _ in range(12):  # every step while messages are on their way
                window += chosen.randint(1, 4)
                receiver.set_window(window)
                await consume(60)
                loads.append((receiver.parked + receiver.in_flight, window))
            assert [pair for pair in loads if pair[0] > 2 * pair[1]] == [], f"seed {seed}"
            assert any(pair[0] > pair[1] for pair in loads), "nothing was ever parked: this test shows nothing"
            assert attempts == {1: 720}, f"seed {seed}: widening a window returns nothing"
            await _until(lambda: receiver._counting.known)
            receiver.set_window(1)
            await _until(lambda: receiver.parked <= 1)  # the surplus has returned
            await consume(900 - 720)
            assert set(attempts) <= {1, 2}, f"seed {seed}"
            assert attempts.total() == 900
            assert await broker.depth(name) == 0

    asyncio.run(scenario())


def test_nothing_goes_back_within_one_of_its_limit(rabbitmq: RabbitMqNode) -> None:
    async def parked(limit: int, known_by: str) -> list[int]:
        """The attempts of 29 messages that are not received, as another consumer and a stop see them."""
        options = {"delivery_limit": limit} if known_by == "declaration" else {}
        policy = f"limit-{uuid.uuid4().hex}"
        async with quorum(rabbitmq, _messages(30), **options) as (broker, name):
            if known_by == "policy":
                rule = f'{{"delivery-limit": {limit}}}'
                await asyncio.to_thread(
                    rabbitmq.control, "set_policy", "--apply-to", "queues", policy, f"^{name}$", rule
                )
            idle: Any = await broker.receiver(name, window=30)
            first = await idle.receive(1, timeout_s=30)
            assert not idle.may_return(first[0])  # a policy may apply to a young queue: not known yet
            await _until(lambda: idle.parked == 29)
            await _until(lambda: idle._counting.known)
            async with await connect(rabbitmq.url) as other:
                busy = await other.receiver(name)
                seen = []
                while got := await busy.receive(100, timeout_s=3.5):  # longer than idle messages stay parked
                    seen += [delivery.attempt for delivery in got]
                    await busy.ack(*got)
            await idle.ack(*first)
            rest = await idle.withdraw()
            await idle.ack(*rest)
            await idle.close()
            assert await broker.depth(name) == 0
            if known_by == "policy":
                await asyncio.to_thread(rabbitmq.control, "clear_policy", policy)
            return [*seen, *(delivery.attempt for delivery in rest)]

    async def scenario() -> None:
        by_policy, by_declaration, far = await asyncio.gather(
            parked(2, "policy"), parked(2, "declaration"), parked(3, "declaration")
        )
        assert by_policy == [1] * 29
        assert by_declaration == [1] * 29
        assert far == [2] * 29

    asyncio.run(scenario())


def test_what_went_back_once_is_handed_out_before_a_stop(rabbitmq: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with quorum(rabbitmq, _messages(10)) as (broker, name):
            async with await connect(
                rabbitmq.amqp_url + "?queue_type=quorum"
            ) as informed:  # the URL says how it counts
                first: Any = await informed.receiver(name, window=8)
                await _until(lambda: first.parked == 10)
                assert await first.withdraw() == []  # once is free
                second: Any = await informed.receiver(name, window=8)
                await _until(lambda: second.parked == 10)
                rest = await second.withdraw()
                assert [delivery.attempt for delivery in rest] == [2] * 10
                await second.ack(*rest)
            assert await broker.depth(name) == 0

    asyncio.run(scenario())


def test_large_messages_on_their_way_while_consumers_change_do_not_come_back(rabbitmq: RabbitMqNode) -> None:
    async def scenario() -> None:
        messages = _messages(60, bytes(300_000))  # several frames: the client library's own way
        async with quorum(rabbitmq, messages) as (broker, name):
            receiver: Any = await broker.receiver(name, window=1)
            got: list[Any] = []
            while len(got) < 60:
                receiver.set_window(1 + len(got) // 2)
                batch = await receiver.receive(timeout_s=60)
                assert batch
                got += batch
                await receiver.ack(*batch)
            assert [delivery.message.id for delivery in got] == [message.id for message in messages]
            assert {delivery.attempt for delivery in got} == {1}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery_limit": 3}, "needs queue_type=quorum"),
        ({"queue_type": "quorum", "delivery_limit": 0}, "must be an integer >= 1, got 0"),
    ],
)
def test_an_invalid_delivery_limit_is_refused(
    rabbitmq: RabbitMqNode, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        asyncio.run(connect(_url(rabbitmq, **options)))


def test_a_frame_that_arrives_slowly_is_waited_for(rabbitmq: RabbitMqNode) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        name = f"slow.{uuid.uuid4().hex}"
        # The largest frame takes longer than a silent server is waited for.
        url = rabbitmq.amqp_url.replace(str(rabbitmq.ports.amqp), str(proxy.port)) + "?answer_timeout_s=0.5"
        async with await connect(rabbitmq.amqp_url) as broker, await connect(url) as slow:
            await broker.declare(name)
            sender = await broker.sender(name)
            (message,) = _messages(1, bytes(140_000))
            assert all(result.ok for result in await sender.send_batch([message]))
            receiver = await slow.receiver(name)
            (delivery,) = await receiver.receive()
            assert (delivery.message.id, delivery.redelivered) == (message.id, False)
            await receiver.ack(delivery)
            await broker.delete(name)

    with FaultProxy(rabbitmq.ports.amqp, bytes_per_s=60_000) as proxy:
        asyncio.run(scenario(proxy))
