"""Messages stay in the outbox until a consumer's receipt, and are published again when there is none in time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flyball import OrderingConfig, Publisher, ReceiptConfig
from flyball.brokers import Broker, Message, Receiver, connect
from flyball.brokers.delivery_receipts import Receipts
from flyball.errors import InvalidValue
from flyball.publisher.publisher import Undelivered
from flyball.store import Outbox, SqliteDatabase


@pytest.fixture(params=["memory", "rabbitmq", "kafka"])
def url(request: pytest.FixtureRequest) -> str:
    fixture = {"rabbitmq": "amqp_url", "kafka": "kafka_url"}.get(request.param)
    return f"memory://{uuid.uuid4().hex}" if fixture is None else str(request.getfixturevalue(fixture))


@pytest.fixture
def memory_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def publisher_with_receipts(
    url: str, channel: str, outbox: str | Path | None, timeout_s: float = 600.0
) -> Publisher:
    return Publisher(
        url,
        channel=channel,
        outbox=outbox,
        declare="log" if url.startswith("kafka") else "queue",
        receipts=ReceiptConfig(timeout_s=timeout_s),
        close_timeout_s=60.0,
    )


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def reader(broker: Broker, channel: str) -> Receiver:
    if broker.capabilities.queues:
        await broker.declare(channel)
        return await broker.receiver(channel)
    await broker.declare(channel, "log")
    return await broker.subscribe(channel, "readers", start="earliest")


async def consume(receiver: Receiver, receipts: Receipts | None, count: int) -> list[str]:
    """As many messages, with a receipt for each; None: without."""
    ids: list[str] = []
    while len(ids) < count:
        got = await receiver.receive(count - len(ids))
        ids += [delivery.message.id for delivery in got]
        if receipts is not None:
            await receipts.send(*(delivery.message.id for delivery in got))
        await receiver.ack(*got)
    return ids


def stored(path: str | Path) -> int:
    with SqliteDatabase(path) as database:
        return Outbox(database).pending()[0]


def test_messages_stay_until_their_receipt(url: str, outbox: str | None) -> None:
    channel = f"orders-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with await connect(url) as broker, publisher_with_receipts(url, channel, outbox) as publisher:
            receiver = await reader(broker, channel)
            receipts = await Receipts.open(broker, f"{channel}.receipts")
            handles = await publisher.publish_many(Message(b"%d" % n) for n in range(10))
            await asyncio.gather(*(handle.wait_confirmed() for handle in handles))
            assert publisher._relay._outbox.pending()[0] == 10
            first = await consume(receiver, receipts, 6)
            await until(lambda: publisher.stats.received == 6)
            assert publisher._relay._outbox.pending()[0] == 4
            rest = await consume(receiver, receipts, 4)
            await until(lambda: publisher.stats.received == 10)
            assert publisher._relay._outbox.pending() == (0, 0)
            assert {*first, *rest} == {handle.id for handle in handles}
            assert publisher.stats.sent_again == 0
            await receiver.close()

    asyncio.run(main())


@pytest.mark.parametrize("broker_kind", ["memory", "rabbitmq"])
def test_what_a_broker_lost_after_its_confirm_comes_again_under_its_own_id(
    broker_kind: str, outbox: str | None, memory_url: str, request: pytest.FixtureRequest
) -> None:
    url = memory_url if broker_kind == "memory" else str(request.getfixturevalue("amqp_url"))
    channel = f"orders-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with await connect(url) as broker, publisher_with_receipts(url, channel, outbox, 0.3) as publisher:
            handles = await publisher.publish_many(Message(b"%d" % n) for n in range(20))
            await asyncio.gather(*(handle.wait_confirmed() for handle in handles))
            await broker.purge(channel)  # as if its disk had been lost
            receiver = await broker.receiver(channel)
            receipts = await Receipts.open(broker, f"{channel}.receipts")
            ids: set[str] = set()
            while len(ids) < 20:
                ids.update(await consume(receiver, receipts, 1))
            await until(lambda: publisher.stats.received == 20)
            assert ids == {handle.id for handle in handles}
            assert publisher.stats.sent_again >= 20
            assert (publisher.stats.accepted, publisher.stats.confirmed) == (20, 20)
            await receiver.close()
            await broker.delete(channel)

    asyncio.run(main())


def test_receipts_and_what_has_none_survive_a_restart(memory_url: str, tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"

    async def main() -> None:
        async with await connect(memory_url) as broker:
            async with publisher_with_receipts(memory_url, "orders", path) as publisher:
                handles = await publisher.publish_many(Message(b"%d" % n) for n in range(10))
            assert stored(path) == 10
            receiver = await broker.receiver("orders")
            receipts = await Receipts.open(broker, "orders.receipts")
            await consume(receiver, receipts, 7)  # while no publisher is there
            await consume(receiver, None, 3)
            async with publisher_with_receipts(memory_url, "orders", path, 0.5) as publisher:
                await until(lambda: publisher.stats.received == 7)
                again = await consume(receiver, receipts, 3)
                await until(lambda: publisher.stats.received == 10)
                assert again == [handle.id for handle in handles[7:]]
            assert stored(path) == 0

    asyncio.run(main())


def test_a_receipt_that_comes_before_the_confirm_is_not_lost(memory_url: str, outbox: str | None) -> None:
    async def main() -> None:
        async with await connect(memory_url) as broker:
            await broker.declare("orders", max_bytes=100)
            sender = await broker.sender("orders")
            await sender.send_batch([Message(bytes(100), "stopper")])
            async with publisher_with_receipts(memory_url, "orders", outbox) as publisher:
                handle = await publisher.publish(b"x", id="early")
                await (await Receipts.open(broker, "orders.receipts")).send("early")
                await asyncio.sleep(0.1)
                assert publisher.stats.received == 0
                await broker.purge("orders")
                await handle.wait_confirmed()
                await until(lambda: publisher.stats.received == 1)
                assert publisher._relay._outbox.pending() == (0, 0)

    asyncio.run(main())


def test_a_publisher_that_wants_no_receipts_forgets_what_an_earlier_one_kept_for_them(
    memory_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "outbox.db"

    async def main() -> None:
        async with publisher_with_receipts(memory_url, "orders", path) as publisher:
            await publisher.publish(b"confirmed")
        assert stored(path) == 1
        async with Publisher(memory_url, channel="orders", outbox=path):
            pass
        assert stored(path) == 0

    asyncio.run(main())


def test_closing_says_how_many_have_no_receipt_where_nothing_keeps_them(memory_url: str) -> None:
    async def main() -> None:
        publisher = publisher_with_receipts(memory_url, "orders", None)
        publisher._close_timeout_s = 0.2
        with pytest.raises(Undelivered, match=r"0 messages were not confirmed, 1 had no receipt within 0\.2 s"):
            async with publisher:
                await publisher.publish(b"x")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ordering": OrderingConfig("p")}, "drops what producer='p' sends again"),
        ({"channel": None}, "receipts need a channel"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        Publisher("memory://", **{"channel": "orders", "outbox": None, "receipts": ReceiptConfig(), **options})


def test_a_timeout_of_receipts_is_above_zero() -> None:
    with pytest.raises(InvalidValue, match="timeout_s of receipts must be > 0, got 0"):
        ReceiptConfig(timeout_s=0.0)
