"""The amqp:// adapter when things go wrong: alarms, frozen and killed brokers, killed clients, wrong addresses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from flyball.brokers import Delivery, Message, Receiver, connect
from flyball.brokers.port import (
    Blocked,
    LoginRefused,
    NoSuchChannel,
    TooLarge,
    Unconfirmed,
    UnfitMessage,
    Unreachable,
    Unsupported,
)
from flyball.brokers.rabbitmq.sender import RabbitSender
from flyball.errors import FlyballError, InvalidValue
from flyball.servers.ports import free_ports
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode, TlsFiles
from flyball.testing import crash
from tests.rabbitmq_nodes import VERSIONS, started_node


@pytest.fixture(scope="module")
def installed_node(tls_files: TlsFiles) -> Iterator[RabbitMqNode]:
    yield from node_with_tls(None, tls_files)


@pytest.fixture(scope="module")
def node_4(tls_files: TlsFiles) -> Iterator[RabbitMqNode]:
    yield from node_with_tls(4, tls_files)


def node_with_tls(version: int | None, files: TlsFiles) -> Iterator[RabbitMqNode]:
    config = {}
    if version == 4:  # as later versions will be without being asked
        config["deprecated_features.permit.transient_nonexcl_queues"] = "false"
    return started_node(version, plugins=(), tls=files, config=config)


@pytest.fixture(params=VERSIONS)
def node(request: pytest.FixtureRequest) -> RabbitMqNode:
    """A node that these tests may kill, freeze and starve; each leaves it running."""
    found: RabbitMqNode = request.getfixturevalue("installed_node" if request.param is None else "node_4")
    return found


def _url(node: RabbitMqNode, **options: object) -> str:
    return node.amqp_url + "?" + "&".join(f"{name}={value}" for name, value in options.items())


def _messages(count: int) -> list[Message]:
    return [Message(b"%d" % at) for at in range(count)]


async def _drain(receiver: Receiver, quiet_s: float = 1.0, at_once: int = 100) -> list[str]:
    got: list[str] = []
    while batch := await receiver.receive(at_once, timeout_s=quiet_s):
        await receiver.ack(*batch)
        got += [delivery.message.id for delivery in batch]
    return got


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


# --- alarms ---------------------------------------------------------------------------------------------------


def test_blocked_under_a_real_memory_alarm_and_consumers_go_on(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node)) as broker:
            await broker.declare("alarm")
            sender, receiver = await broker.sender("alarm"), await broker.receiver("alarm")
            before, during = _messages(10), _messages(10)
            assert all(result.ok for result in await sender.send_batch(before))
            await asyncio.to_thread(node.set_memory_alarm, True)
            try:
                sending = asyncio.create_task(sender.send_batch(during))
                await _until(lambda: sender.blocked)
                assert await _drain(receiver) == [message.id for message in before]
                assert not sending.done()
            finally:
                await asyncio.to_thread(node.set_memory_alarm, False)
            assert all(result.ok for result in await sending)
            await _until(lambda: not sender.blocked)
            assert await _drain(receiver) == [message.id for message in during]
            await broker.delete("alarm")

    asyncio.run(scenario())


def test_an_alarm_that_stays_is_reported_and_nothing_is_lost(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node, blocked_timeout_s=0.5)) as broker:
            await broker.declare("alarm")
            sender = await broker.sender("alarm")
            await asyncio.to_thread(node.set_memory_alarm, True)
            try:
                first = await sender.send_batch(_messages(3))  # on its way when the alarm is heard
                assert all(isinstance(result.error, Unconfirmed) for result in first)
                second = await sender.send_batch(_messages(3))  # never sent
                assert all(isinstance(result.error, Blocked) for result in second)
            finally:
                await asyncio.to_thread(node.set_memory_alarm, False)
            third = await sender.send_batch(_messages(3))
            assert all(result.ok for result in third)
            receiver = await broker.receiver("alarm")
            got = await _drain(receiver)
            assert {result.id for result in third} <= set(got)
            assert not {result.id for result in second} & set(got)
            await broker.delete("alarm")

    asyncio.run(scenario())


# --- frozen and killed brokers --------------------------------------------------------------------------------


def test_a_connection_given_up_in_the_middle_of_a_batch_leaves_nothing_to_wait_for(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node, blocked_timeout_s=600)) as broker:
            await broker.declare("given-up")
            sender = await broker.sender("given-up")
            assert isinstance(sender, RabbitSender)
            for _ in range(3):
                sending = asyncio.create_task(sender.send_batch(_messages(3000)))
                # Between two runs of the batch, when the first is written and the others are not.
                asyncio.get_running_loop().call_soon(sender._link.abort)
                failed = [result.error for result in await sending if result.error is not None]
                assert failed
                assert all(isinstance(error, Unconfirmed | Unreachable) for error in failed)
                assert not sender._runs
                assert sender._link.pending_answers == 0
                assert all(result.ok for result in await sender.send_batch(_messages(1000)))
            await broker.delete("given-up")

    asyncio.run(scenario())


def test_a_frozen_broker_is_noticed_by_the_missing_confirm(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        # Heartbeats would take minutes here: if this ends, the watchdog has noticed.
        async with await connect(_url(node, heartbeat_s=600)) as broker:
            await broker.declare("frozen")
            sender = await broker.sender("frozen")
            assert all(result.ok for result in await sender.send_batch(_messages(5)))
            node.pause()
            try:
                results = await sender.send_batch(_messages(5))
                assert all(isinstance(result.error, Unconfirmed) for result in results)
            finally:
                node.resume()
            again = [Message(b"again", id=result.id) for result in results]
            assert all(result.ok for result in await sender.send_batch(again))
            receiver = await broker.receiver("frozen")
            got = await _drain(receiver, at_once=1)
            # Stored twice perhaps, but what is acknowledged is not delivered again.
            assert sorted(got) == sorted(set(got))
            assert {message.id for message in again} <= set(got)
            await broker.delete("frozen")

    asyncio.run(scenario())


def test_a_receiver_finds_back_after_the_network_stalled(node: RabbitMqNode) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        url = _url(node).replace(str(node.ports.amqp), str(proxy.port)) + "heartbeat_s=600&answer_timeout_s=0.3"
        async with await connect(url) as broker:
            await broker.declare("stalled")
            receiver = await broker.receiver("stalled")
            sender = await broker.sender("stalled")
            first, second = _messages(3), _messages(3)
            await sender.send_batch(first)
            deliveries = await receiver.receive()
            proxy.stall()
            while receiver.in_flight:  # the frozen server is noticed: the broker delivers again what was in flight
                await asyncio.sleep(0.02)
            proxy.cut()
            proxy.flow()
            await receiver.ack(*deliveries)  # harmless: it would acknowledge nothing of the new connection
            while not all(result.ok for result in await sender.send_batch(second)):
                pass
            got = await _drain(receiver)
            assert set(got) == {message.id for message in (*first, *second)}
            await broker.delete("stalled")

    with FaultProxy(node.ports.amqp) as proxy:
        asyncio.run(scenario(proxy))


@pytest.mark.parametrize(("seed", "queue_type"), [(1, "quorum"), (2, "classic")])
def test_killing_the_broker_loses_no_confirmed_message(node: RabbitMqNode, seed: int, queue_type: str) -> None:
    """RabbitMQ writes a quorum queue's name down a second after it was declared: from then on it is safe."""
    url = _url(node, queue_type=queue_type)
    name = f"killed.{queue_type}"

    async def administer(*, declare: bool) -> None:
        async with await connect(url) as broker:
            await (broker.declare(name) if declare else broker.delete(name))

    asyncio.run(administer(declare=True))
    if queue_type == "quorum":
        node.await_registered(name)
    ledger = crash.kill_broker(node, url, name, seed=seed, messages=3000)
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 3000
    asyncio.run(administer(declare=False))


@pytest.mark.parametrize("node", VERSIONS[:1], indirect=True)
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_killing_clients_loses_no_confirmed_message(node: RabbitMqNode, queue_type: str) -> None:
    url = _url(node, queue_type=queue_type)
    channel = f"clients.{queue_type}"

    async def administer(*, declare: bool) -> None:
        async with await connect(url) as broker:
            await (broker.declare(channel) if declare else broker.delete(channel))

    asyncio.run(administer(declare=True))
    ledger = crash.kill_clients(url, channel, seed=7, messages=600, kills=4)
    assert ledger.problems() == []
    assert len(set(ledger.received)) == 600
    asyncio.run(administer(declare=False))


# --- repeats --------------------------------------------------------------------------------------------------


def test_a_repeat_of_something_acknowledged_is_dropped_and_of_something_unfinished_is_not(
    node: RabbitMqNode,
) -> None:
    async def scenario() -> None:
        async with await connect(_url(node)) as broker:
            await broker.declare("repeats")
            sender, receiver = await broker.sender("repeats"), await broker.receiver("repeats")
            done, unfinished, fresh = _messages(3)
            await sender.send_batch([done, unfinished])
            first = await receiver.receive(2, timeout_s=10)
            if len(first) < 2:
                first += await receiver.receive(1, timeout_s=10)
            await receiver.ack(first[0])
            await receiver.nack(first[1])
            await sender.send_batch([done, fresh])
            assert sorted(await _drain(receiver)) == sorted([unfinished.id, fresh.id])
            assert await broker.depth("repeats") == 0
            await broker.delete("repeats")

    asyncio.run(scenario())


# --- parked messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_parked_messages_go_back_when_nobody_takes_them(node: RabbitMqNode, queue_type: str) -> None:
    async def scenario() -> None:
        async with await connect(_url(node, queue_type=queue_type)) as broker:
            name = f"parked.{queue_type}"
            await broker.declare(name)
            sender = await broker.sender(name)
            messages = _messages(30)
            await sender.send_batch(messages)
            idle = await broker.receiver(name, window=30)
            first = await idle.receive(1, timeout_s=10)
            idle.set_window(1)  # 29 are parked now, and no other consumer can get them
            async with await connect(_url(node)) as other:
                busy = await other.receiver(name)
                got: set[str] = set()
                while len(got) < 29:
                    batch = await busy.receive(100, timeout_s=30)
                    assert batch, f"only {len(got)} of 29 came back"
                    await busy.ack(*batch)
                    got |= {delivery.message.id for delivery in batch}
            await idle.ack(*first)
            assert {first[0].message.id} | got == {message.id for message in messages}
            assert await idle.receive(1, timeout_s=0.2) == []
            await broker.delete(name)

    asyncio.run(scenario())


# --- slow handlers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", VERSIONS[1:], indirect=True)
def test_what_takes_longer_than_the_consumer_timeout_of_a_quorum_queue_comes_again(node: RabbitMqNode) -> None:
    """RabbitMQ 4.3 takes the messages back then and cancels the consumer; the queue is still there."""
    arguments = {"x-queue-type": "quorum", "x-consumer-timeout": 1000}
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        connection.channel().queue_declare("slow", durable=True, arguments=arguments)

    async def scenario() -> None:
        async with await connect(_url(node)) as broker:
            sender, receiver = await broker.sender("slow"), await broker.receiver("slow", window=3)
            messages = _messages(3)
            await sender.send_batch(messages)
            first: list[Delivery] = []
            while len(first) < 3:
                first += await receiver.receive(3)
            again: list[Delivery] = []
            while len(again) < 3:
                again += await receiver.receive(3)
            await receiver.ack(*first)  # too late, and harmless
            await receiver.ack(*again)
            assert {delivery.message.id for delivery in again} == {message.id for message in messages}
            assert all(delivery.redelivered for delivery in again)
            await receiver.close()
            assert await broker.depth("slow") == 0
            await broker.delete("slow")

    asyncio.run(scenario())


def test_a_quorum_queue_drops_nothing_that_was_returned_often(node: RabbitMqNode) -> None:
    """RabbitMQ 4 drops what came back from 20 consumers, unless the queue was declared without a limit."""

    async def scenario() -> None:
        async with await connect(_url(node, queue_type="quorum")) as broker:
            await broker.declare("often")
            sender = await broker.sender("often")
            (message,) = _messages(1)
            await sender.send_batch([message])
            for attempt in range(1, 26):
                receiver = await broker.receiver("often")
                (delivery,) = await receiver.receive(1, timeout_s=30)
                assert (delivery.message.id, delivery.attempt) == (message.id, attempt)
                await receiver.close()  # not acknowledged
            await broker.delete("often")

    asyncio.run(scenario())


@pytest.mark.parametrize("node", VERSIONS[1:], indirect=True)
def test_a_quorum_queue_that_was_declared_with_the_limit_of_the_server_is_used(node: RabbitMqNode) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        connection.channel().queue_declare("limited", durable=True, arguments={"x-queue-type": "quorum"})

    async def scenario() -> None:
        async with await connect(_url(node, queue_type="quorum")) as broker:
            await broker.declare("limited")
            sender = await broker.sender("limited")
            assert all(result.ok for result in await sender.send_batch(_messages(3)))
            assert await broker.depth("limited") == 3
            await broker.delete("limited")

    asyncio.run(scenario())


# --- wrong addresses, wrong input -----------------------------------------------------------------------------


def test_tls_with_a_certificate_and_without(node: RabbitMqNode, tls_files: TlsFiles, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await connect(f"{node.amqps_url}?ca_file={tls_files.authority}") as broker:
            await broker.declare("secret")
            sender, receiver = await broker.sender("secret"), await broker.receiver("secret")
            messages = _messages(300)
            assert all(result.ok for result in await sender.send_batch(messages))
            assert await _drain(receiver) == [message.id for message in messages]
            await broker.delete("secret")
        with pytest.raises(Unreachable, match="TLS"):
            await connect(node.amqps_url)  # an unknown authority
        with pytest.raises(InvalidValue, match="cannot be read"):
            await connect(f"{node.amqps_url}?ca_file={tmp_path / 'absent.pem'}")
        with pytest.raises(InvalidValue, match="amqps://"):
            await connect(_url(node, ca_file=tls_files.authority))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (("guest:guest", "guest:hunter2"), LoginRefused, "user and password"),
        (("/?", "/nowhere?"), LoginRefused, "virtual host 'nowhere'"),
        (("?x", "?queue_type=lazy"), InvalidValue, "classic or quorum"),
        (("?x", "?prefetch=1"), InvalidValue, "'prefetch'"),
        (("?x", "?answer_timeout_s=soon"), InvalidValue, "answer_timeout_s"),
        (("?x", "?management=nope"), InvalidValue, "management"),
        (("?x", "?dedup_ids=-1"), InvalidValue, "must be an integer >= 0, got '-1'"),
    ],
)
def test_a_wrong_url_is_one_clear_sentence(
    node: RabbitMqNode, change: tuple[str, str], error: type[FlyballError], words: str
) -> None:
    url = f"{node.amqp_url}?x".replace(*change).removesuffix("?x").replace("?x?", "?")
    with pytest.raises(error) as raised:
        asyncio.run(_open(url))
    said = str(raised.value)
    assert words in said
    assert "\n" not in said
    assert "hunter2" not in said + repr(raised.value)


async def _open(url: str) -> None:
    async with await connect(url):
        pass


def test_nobody_there() -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unreachable, match="check host and port"):
        asyncio.run(_open(f"amqp://guest:guest@127.0.0.1:{port}/"))


@pytest.mark.parametrize("node", VERSIONS[1:], indirect=True)
def test_a_server_that_permits_durable_queues_only(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node)) as broker:
            with pytest.raises(
                InvalidValue, match="permits durable queues only; declare 'passing' with durable=True"
            ):
                await broker.declare("passing", durable=False)
            await broker.declare("lasting")
            await broker.delete("lasting")

    asyncio.run(scenario())


def test_bad_messages_do_not_fail_their_neighbours(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node, max_body_bytes=1000)) as broker:
            await broker.declare("bad")
            sender, receiver = await broker.sender("bad"), await broker.receiver("bad")
            good = _messages(3)
            bad = [
                Message(bytes(1001)),
                Message(b"", id="i" * 300),
                Message(b"", headers={"huge": 2**64}),
                Message(b"", key=bytes(200_000)),
            ]
            results = await sender.send_batch([good[0], bad[0], bad[1], good[1], bad[2], bad[3], good[2]])
            assert [result.ok for result in results] == [True, False, False, True, False, False, True]
            errors = [result.error for result in results if result.error is not None]
            assert isinstance(errors[0], TooLarge)
            assert [type(error) for error in errors[1:]] == [UnfitMessage] * 3
            assert all("\n" not in str(error) for error in errors)
            assert await _drain(receiver) == [message.id for message in good]
            await broker.delete("bad")

    asyncio.run(scenario())


def test_connections_that_are_lost_at_once_are_opened_later_and_later(node: RabbitMqNode) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        url = _url(node).replace(str(node.ports.amqp), str(proxy.port))
        async with await connect(url) as broker:
            await broker.declare("flapping")
            receiver = await broker.receiver("flapping")
            link = receiver._link  # type: ignore[attr-defined]
            pauses = []
            for _ in range(6):
                lost = asyncio.Event()
                link.on_lost.append(lost.set)
                proxy.cut()
                await lost.wait()
                link.on_lost.remove(lost.set)
                start_s = time.monotonic()
                while not link.is_open:
                    await asyncio.sleep(0.001)
                pauses.append(time.monotonic() - start_s)
            assert all(pause >= 0.025 * 2**number for number, pause in enumerate(pauses)), pauses
            sender = await broker.sender("flapping")
            assert (await sender.send_batch(_messages(1)))[0].ok
            assert len(await _drain(receiver)) == 1
            await broker.delete("flapping")

    with FaultProxy(node.ports.amqp) as proxy:
        asyncio.run(scenario(proxy))


def test_a_deleted_queue_is_named(node: RabbitMqNode) -> None:
    async def scenario() -> None:
        async with await connect(_url(node)) as broker:
            await broker.declare("doomed")
            sender, receiver = await broker.sender("doomed"), await broker.receiver("doomed")
            await broker.delete("doomed")
            with pytest.raises(NoSuchChannel, match="doomed"):
                await receiver.receive(timeout_s=10)
            (result,) = await sender.send_batch(_messages(1))
            assert isinstance(result.error, NoSuchChannel)
            await broker.declare("doomed")
            assert all(result.ok for result in await sender.send_batch(_messages(2)))
            with pytest.raises(Unsupported, match="management"):
                await broker.channels()
            await broker.delete("doomed")

    asyncio.run(scenario())
