"""The rabbitmq-stream:// adapter on a real server: the contract, then what only streams have."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rstream
from hypothesis import given
from hypothesis import strategies as st

from flyball.brokers import Broker, Delivery, Message, Receiver, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import LoginRefused, NoSuchChannel, Unconfirmed, Unreachable, Unsupported
from flyball.brokers.rabbitmq_stream.codec import UnreadableMessage, decode, encode
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.servers.ports import free_ports
from flyball.servers.rabbitmq import RabbitMqNode, TlsFiles
from flyball.testing import crash
from flyball.testing.broker_contract import BrokerContract, ids, numbered, records


class TestStreams(BrokerContract):
    @pytest.fixture(autouse=True)
    def _server(self, rabbitmq: RabbitMqNode) -> None:
        self._url = rabbitmq.stream_url

    def url(self) -> str:
        return self._url


def fresh(prefix: str = "stream") -> str:
    return f"{prefix}.{uuid.uuid4().hex[:12]}"


def login(url: str) -> dict[str, Any]:
    parsed = BrokerUrl.parse(url)
    host, port = parsed.hosts[0]
    return {"host": host, "port": port, "username": parsed.user, "password": parsed.password}


async def take(receiver: Receiver, count: int) -> list[Delivery]:
    got: list[Delivery] = []
    while len(got) < count:
        batch = await receiver.receive(count - len(got), timeout_s=60)
        assert batch, f"{len(got)} of {count} came"
        got += batch
    return got


# --- the format ----------------------------------------------------------------------------------------

header_values = st.one_of(
    st.text(max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.binary(max_size=300),
)
messages = st.builds(
    Message,
    body=st.binary(max_size=600),
    id=st.text(min_size=1, max_size=300),
    key=st.none() | st.binary(max_size=300),
    headers=st.dictionaries(
        st.text(min_size=1, max_size=20).filter(lambda name: "flyball" not in name), header_values
    ),
    event_time_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    content_type=st.none() | st.text(st.characters(max_codepoint=127), min_size=1, max_size=40),
)


@given(messages)
def test_any_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message), "log", 0) == message


@given(messages)
def test_another_amqp_library_reads_the_same(message: Message) -> None:
    theirs = rstream.amqp_decoder(encode(message))
    assert theirs.properties.message_id == message.id.encode()
    assert b"".join([theirs.body] if isinstance(theirs.body, bytes) else theirs.body or []) == message.body


@given(st.binary(max_size=60))
def test_anything_else_is_refused_or_read_but_never_breaks(raw: bytes) -> None:
    with suppress(UnreadableMessage):
        assert isinstance(decode(raw, "log", 5), Message)


# --- beside plain programs -------------------------------------------------------------------------------


def test_plain_rstream_programs_speak_with_us(rabbitmq: RabbitMqNode) -> None:
    url, log = rabbitmq.stream_url, fresh()

    async def scenario() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            ours = Message(b"ours", headers={"n": 3})
            await (await broker.sender(log)).send_batch([ours])
            async with rstream.Producer(**login(url)) as producer:
                theirs = rstream.AMQPMessage(body=b"theirs", application_properties={"colour": "red"})
                await producer.send_wait(f"{log}-0", theirs)
            stored: list[Any] = []
            while len(stored) < 2:
                _, end = await broker.bounds(log, 0)
                stored = await records(broker, log, 0, 0, end)
            assert [record.message.body for record in stored] == [b"ours", b"theirs"]
            assert stored[1].message.id == f"{log}:1"
            assert dict(stored[1].message.headers) == {"colour": "red"}
            seen: asyncio.Queue[tuple[Any, int]] = asyncio.Queue()
            consumer = rstream.Consumer(**login(url))
            await consumer.start()

            async def on_message(message: Any, context: Any) -> None:
                seen.put_nowait((message, context.offset))

            await consumer.subscribe(
                f"{log}-0",
                on_message,
                decoder=rstream.amqp_decoder,
                offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
            )
            message, offset = await asyncio.wait_for(seen.get(), 60)
            await consumer.close()
            assert (message.properties.message_id.decode(), message.body, offset) == (ours.id, b"ours", 0)
            assert message.application_properties == {b"n": 3}

    asyncio.run(scenario())


# --- sequences, groups, reading --------------------------------------------------------------------------


def test_a_restarted_producer_is_told_where_it_was(rabbitmq: RabbitMqNode) -> None:
    log = fresh()
    sent = numbered(50)

    async def first() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log, producer="sensor")
            assert await sender.last_sequence() is None
            await sender.send_batch(sent[:30], sequence=0)

    async def second() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            sender = await broker.sender(log, producer="sensor")
            assert await sender.last_sequence() == 29
            results = await sender.send_batch(sent[20:], sequence=20)
            assert [result.duplicate for result in results] == [True] * 10 + [False] * 20
            assert all(result.ok for result in results)
            stored = await records(broker, log, 0, 0, 1 << 40)
            assert [record.message.id for record in stored] == ids(sent)
            other = await broker.sender(log, producer="another")
            assert await other.last_sequence() is None

    asyncio.run(first())
    asyncio.run(second())


def test_partitions_of_a_group_move_when_members_come_and_go(rabbitmq: RabbitMqNode) -> None:
    log, group = fresh(), fresh("g")

    async def scenario() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            await broker.declare(log, "log", partitions=4)
            sender = await broker.sender(log)
            members = [await broker.subscribe(log, group) for _ in range(3)]
            done: dict[str, set[int]] = {}

            async def work(number: int, member: Receiver) -> None:
                while True:
                    for delivery in await member.receive():
                        done.setdefault(delivery.message.id, set()).add(number)
                        await member.ack(delivery)

            workers = [asyncio.create_task(work(number, member)) for number, member in enumerate(members)]
            sent: list[Message] = []
            # Until every member has had work: with 4 partitions none of the 3 may starve.
            for _ in range(600):
                batch = [Message(b"", key=b"%d" % at) for at in range(40)]
                sent += batch
                assert all(result.ok for result in await sender.send_batch(batch))
                if set().union(*done.values()) == {0, 1, 2}:
                    break
                await asyncio.sleep(0.1)
            assert set().union(*done.values()) == {0, 1, 2}
            workers[0].cancel()
            await members[0].close()
            batch = [Message(b"", key=b"%d" % at) for at in range(40)]
            sent += batch
            await sender.send_batch(batch)
            for _ in range(600):
                if len(done) == len(sent):
                    break
                await asyncio.sleep(0.1)
            assert set(done) == set(ids(sent))
            for worker in workers:
                worker.cancel()

    asyncio.run(scenario())


def test_the_bulk_reader_reads_ranges_and_can_be_pickled(rabbitmq: RabbitMqNode) -> None:
    url, log = rabbitmq.stream_url, fresh()
    sent = [Message(b"body %d" % at, key=b"k") for at in range(2500)]

    async def fill() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log)
            for at in range(0, 2500, 400):
                await sender.send_batch(sent[at : at + 400])

    asyncio.run(fill())
    with open_log_reader(url, log) as fresh_reader, pickle.loads(pickle.dumps(fresh_reader)) as reader:
        assert (reader.partitions(), reader.bounds(0)) == (1, (0, 2500))
        for start, stop in ((0, 2500), (399, 401), (777, 2222), (2400, 9999), (5, 5)):
            chunks = list(reader.read_bodies(0, start, stop))
            assert [body for chunk in chunks for body in chunk.bodies] == [each.body for each in sent[start:stop]]
            assert all(chunk.first_offset >= start for chunk in chunks)
    with open_log_reader(url, fresh()) as absent, pytest.raises(NoSuchChannel):
        absent.partitions()


# --- errors ------------------------------------------------------------------------------------------------


def test_the_bulk_reader_serves_threads_and_callers_in_an_event_loop(rabbitmq: RabbitMqNode) -> None:
    log, url = fresh(), rabbitmq.stream_url

    async def scenario() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            await (await broker.sender(log)).send_batch(numbered(300))
        with open_log_reader(url, log) as reader:

            def count() -> int:
                return sum(len(chunk.bodies) for chunk in reader.read_bodies(0, *reader.bounds(0)))

            assert count() == 300
            for chunk in reader.read_bodies(0, 0, 300):
                assert chunk.first_offset == 0
                break
            assert await asyncio.gather(*(asyncio.to_thread(count) for _ in range(6))) == [300] * 6

    asyncio.run(scenario())


def test_errors_are_one_sentence_without_the_password(rabbitmq: RabbitMqNode) -> None:
    (closed,) = free_ports(1)
    stream = rabbitmq.ports.stream

    async def scenario() -> None:
        with pytest.raises(Unreachable, match="no answer from"):
            await connect(f"rabbitmq-stream://guest:s3cret@127.0.0.1:{closed}/")
        with pytest.raises(LoginRefused, match="refused the login") as refused:
            await connect(f"rabbitmq-stream://guest:s3cret@127.0.0.1:{stream}/")
        assert "s3cret" not in str(refused.value)
        with pytest.raises(LoginRefused, match="virtual host"):
            await connect(f"rabbitmq-stream://guest:guest@127.0.0.1:{stream}/nowhere")
        with pytest.raises(InvalidValue, match="unknown option 'colour'"):
            await connect(f"rabbitmq-stream://127.0.0.1:{stream}/?colour=red")
        async with await connect(f"rabbitmq-stream://guest:guest@127.0.0.1:{stream}/") as broker:
            with pytest.raises(Unsupported, match="management=PORT"):
                await broker.channels()

    asyncio.run(scenario())


def test_tls_with_a_certificate_and_without(tls_files: TlsFiles, tmp_path: Path) -> None:
    log, sent = fresh(), numbered(300)

    async def scenario(url: str) -> None:
        async with await connect(f"{url}&ca_file={tls_files.authority}") as broker:
            await broker.declare(log, "log")
            receiver = await broker.subscribe(log, fresh("g"), start="earliest", window=300)
            assert all(result.ok for result in await (await broker.sender(log)).send_batch(sent))
            got = await take(receiver, 300)
            assert ids(got) == ids(sent)
            await receiver.ack(*got)
            assert await broker.bounds(log, 0) == (0, 300)
        with pytest.raises(Unreachable, match="no answer from"):
            await connect(url)  # an unknown authority
        with pytest.raises(InvalidValue, match="cannot be read"):
            await connect(f"{url}&ca_file={tmp_path / 'absent.pem'}")
        with pytest.raises(InvalidValue, match="must be 0 or 1"):
            await connect(url.replace("tls=1", "tls=maybe"))

    with RabbitMqNode(plugins=("rabbitmq_stream",), tls=tls_files) as node:
        asyncio.run(scenario(node.stream_tls_url))


# --- faults ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile() -> Iterator[RabbitMqNode]:
    """A node to kill and to freeze, that has had a stream for a moment.

    RabbitMQ 3.10 writes down about a second after the very first stream of a node was declared that there is a
    coordinator of streams. Killed before that, it comes back without it, and with it all its streams are lost
    from sight (their files stay). This is the only window: once the coordinator is on record, streams are
    entries of its log, which is synced, and one that was declared just before the kill is there again.
    """

    async def declare_first(url: str) -> None:
        async with await connect(url) as broker:
            await broker.declare(fresh(), "log")

    with RabbitMqNode() as node:
        asyncio.run(declare_first(node.stream_url))
        node.await_registered("rabbit_stream_coordinator")
        yield node


@pytest.mark.parametrize("seed", [11])
def test_killed_clients_lose_nothing(rabbitmq: RabbitMqNode, seed: int) -> None:
    log = fresh()

    async def declare() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            await broker.declare(log, "log")

    asyncio.run(declare())
    ledger = crash.kill_clients(rabbitmq.stream_url, log, group=fresh("g"), seed=seed, messages=800, kills=4)
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 800


async def _send_until_confirmed(broker: Broker, log: str, sent: list[Message], batch: int) -> list[str]:
    """Send again with the same id what was not confirmed; the ids in the order of their confirms."""
    sender, confirmed = await broker.sender(log), []
    pending = list(sent)
    while pending:
        results = await sender.send_batch(pending[:batch])
        assert all(isinstance(result.error, Unconfirmed) for result in results if not result.ok)
        done = {result.id for result in results if result.ok}
        confirmed += sorted(done)
        pending = [message for message in pending if message.id not in done]
        if not done:
            await asyncio.sleep(0.1)
    return confirmed


@pytest.mark.parametrize(("seed", "partitions"), [(5, 1), (6, 3)])
def test_a_killed_server_loses_nothing_it_confirmed(fragile: RabbitMqNode, seed: int, partitions: int) -> None:
    log = fresh()

    async def declare() -> None:
        async with await connect(fragile.stream_url) as broker:
            await broker.declare(log, "log", partitions=partitions)

    asyncio.run(declare())
    ledger = crash.kill_broker(fragile, fragile.stream_url, log, group=fresh("g"), seed=seed, messages=3000)
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 3000


def test_a_killed_server_still_drops_repeats(fragile: RabbitMqNode) -> None:
    log, sent = fresh(), numbered(60)

    async def scenario() -> None:
        async with await connect(fragile.stream_url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log, producer="sensor")
            assert all(result.ok for result in await sender.send_batch(sent[:40], sequence=0))
        fragile.kill()
        fragile.start()
        async with await connect(fragile.stream_url) as broker:
            sender = await broker.sender(log, producer="sensor")
            assert await sender.last_sequence() == 39
            results = await sender.send_batch(sent[20:], sequence=20)
            assert [result.duplicate for result in results] == [True] * 20 + [False] * 20
            stored = await records(broker, log, 0, 0, 1 << 40)
            assert [record.message.id for record in stored] == ids(sent)

    asyncio.run(scenario())


def test_a_frozen_server_is_noticed_and_comes_back(fragile: RabbitMqNode) -> None:
    log = fresh()

    async def scenario() -> None:
        async with await connect(fragile.stream_url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log)
            await sender.send_batch(numbered(5))
            lost = numbered(5)
            fragile.pause()
            try:
                results = await sender.send_batch(lost)
                assert [type(result.error) for result in results] == [Unconfirmed] * 5
                assert not sender.blocked  # only sending again shows whether it is back
            finally:
                fragile.resume()
            assert sorted(await _send_until_confirmed(broker, log, lost, 5)) == sorted(ids(lost))

    asyncio.run(scenario())
