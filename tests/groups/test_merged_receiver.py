"""One window over many queues: shared, fair, and every message settled at its own queue."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.port import Broker
from flyball.errors import InvalidValue
from flyball.groups.merged_receiver import MergedReceiver
from flyball.groups.policy.group import Queue
from flyball.groups.policy.windows import share_window


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


@asynccontextmanager
async def merged(counts: list[int], window: int) -> AsyncIterator[tuple[MergedReceiver, Broker]]:
    """A receiver of queues that hold the given numbers of messages."""
    async with await connect(f"memory://{uuid.uuid4().hex}") as broker:
        receiver = MergedReceiver(window)
        for number, count in enumerate(counts):
            await broker.declare(f"orders.{number}")
            sender = await broker.sender(f"orders.{number}")
            if count:
                await sender.send_batch([Message(b"%d" % body) for body in range(count)])
            receiver.add(("orders", number), await broker.receiver(f"orders.{number}", window=window))
        try:
            yield receiver, broker
        finally:
            await receiver.close()


async def _receive(receiver: MergedReceiver, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        got = await receiver.receive(count - len(found), timeout_s=30)
        assert got
        found += got
    return found


def test_the_window_is_shared() -> None:
    async def scenario() -> None:
        async with merged([50, 50, 50], window=6) as (receiver, _):
            first = await _receive(receiver, 6)
            assert receiver.in_flight == receiver.occupied == 6
            assert await receiver.receive(10, timeout_s=0.05) == []
            await receiver.ack(*first[:2])
            assert len(await _receive(receiver, 2)) == 2
            receiver.set_window(9)
            assert len(await _receive(receiver, 3)) == 3
            receiver.set_window(0)
            assert await receiver.receive(10, timeout_s=0.05) == []

    run(scenario())


def test_what_went_back_before_it_was_handed_out_comes_again() -> None:
    """As when a connection was lost while messages waited here, and nothing else is in flight."""

    async def scenario() -> None:
        async with merged([3], window=4) as (receiver, _):
            source = receiver.source(("orders", 0))
            assert source is not None
            while len(source.buffer) < 3:
                await asyncio.sleep(0.001)
            await source.receiver.nack(*source.buffer)
            assert sorted(each.message.body for each in await _receive(receiver, 3)) == [b"0", b"1", b"2"]

    run(scenario())


def test_no_queue_waits_for_a_busier_one() -> None:
    async def scenario() -> None:
        async with merged([5000, 40, 40], window=6) as (receiver, _):
            handled: Counter[str] = Counter()
            while handled["orders.1"] < 40 or handled["orders.2"] < 40:
                deliveries = await receiver.receive(6, timeout_s=30)
                handled.update(delivery.channel for delivery in deliveries)
                await receiver.ack(*deliveries)
            assert handled["orders.0"] < 400

    run(scenario())


def test_each_message_is_settled_at_its_queue_and_in_order() -> None:
    async def scenario() -> None:
        async with merged([30, 30], window=10) as (receiver, broker):
            orders: dict[str, list[int]] = {"orders.0": [], "orders.1": []}
            for _ in range(6):
                for delivery in await _receive(receiver, 10):
                    orders[delivery.channel].append(int(delivery.message.body))
                    await receiver.ack(delivery)
                    await receiver.ack(delivery)  # once more changes nothing
            assert orders == {"orders.0": list(range(30)), "orders.1": list(range(30))}
            assert receiver.in_flight == receiver.parked == 0
            assert await broker.depth("orders.0") == await broker.depth("orders.1") == 0

    run(scenario())


def test_what_is_rejected_comes_again() -> None:
    async def scenario() -> None:
        async with merged([1, 0], window=4) as (receiver, _):
            (delivery,) = await _receive(receiver, 1)
            await receiver.nack(delivery)
            (again,) = await _receive(receiver, 1)
            assert again.message.id == delivery.message.id
            assert again.redelivered
            assert receiver.may_return(again)
            await receiver.nack(again, requeue=False)
            assert await receiver.receive(1, timeout_s=0.05) == []

    run(scenario())


def test_after_a_removal_old_deliveries_settle_nothing() -> None:
    """The tags of the queue's next receiver begin anew; an old delivery must not stand for a new one."""

    async def scenario() -> None:
        async with merged([3], window=4) as (receiver, broker):
            queue: Queue = ("orders", 0)
            old = await _receive(receiver, 3)
            source = receiver.source(queue)
            assert source is not None
            await receiver.remove(source)
            assert receiver.in_flight == 0
            receiver.add(queue, await broker.receiver("orders.0", window=4))
            new = await _receive(receiver, 3)
            await receiver.ack(*old)
            assert receiver.in_flight == 3
            await receiver.ack(*new)
            assert receiver.in_flight == 0
            assert await broker.depth("orders.0") == 0

    run(scenario())


def test_withdrawn_messages_go_back() -> None:
    async def scenario() -> None:
        async with merged([20, 20], window=4) as (receiver, broker):
            deliveries = await _receive(receiver, 4)
            assert await receiver.withdraw() == []
            await receiver.ack(*deliveries)
            assert await receiver.receive(1, timeout_s=0.05) == []
            assert await broker.depth("orders.0") + await broker.depth("orders.1") == 36

    run(scenario())


def test_a_queue_that_was_deleted_disturbs_no_other_one() -> None:
    async def scenario() -> None:
        async with merged([1, 1], window=4) as (receiver, broker):
            await receiver.ack(*await _receive(receiver, 2))
            await broker.delete("orders.1")
            sender = await broker.sender("orders.0")
            await sender.send_batch([Message(b"more")])
            (delivery,) = await _receive(receiver, 1)
            assert delivery.message.body == b"more"

    run(scenario())


def test_a_window_is_not_negative() -> None:
    async def scenario() -> None:
        async with merged([], window=1) as (receiver, _):
            with pytest.raises(InvalidValue, match="window must be an integer >= 0, got -1"):
                receiver.set_window(-1)

    run(scenario())


def test_shares_follow_the_traffic_and_leave_something_for_each() -> None:
    queues = [("orders", number) for number in range(10)]
    even = share_window(100, dict.fromkeys(queues, 7))
    assert set(even.values()) == {15}
    one = share_window(100, {queue: 500 if queue == queues[3] else 0 for queue in queues})
    assert one.pop(queues[3]) == 100
    assert set(one.values()) == {10}
    assert share_window(100, {}) == {}
    assert share_window(0, dict.fromkeys(queues, 7)) == dict.fromkeys(queues, 0)
