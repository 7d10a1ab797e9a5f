"""The rabbitmq-stream:// adapter on a real server: the contract, then what only streams have."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import rstream
from hypothesis import given
from hypothesis import strategies as st
from rstream.compression import CompressionType, NoneCompressionCodec, StreamCompressionCodecs
from rstream.connection import ConnectionClosed

from flyball.brokers import Broker, Delivery, Message, Receiver, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import (
    LoginRefused,
    NoSuchChannel,
    Unconfirmed,
    Unreachable,
    Unsupported,
    is_permanent,
)
from flyball.brokers.rabbitmq_stream.codec import decode, encode
from flyball.brokers.rabbitmq_stream.connection import StreamClient, StreamSettings
from flyball.brokers.rabbitmq_stream.group import open_amqp
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most
from flyball.servers.ports import free_ports
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode, TlsFiles
from flyball.testing import crash
from flyball.testing.broker_contract import BrokerContract, ids, numbered, records
from tests.rabbitmq_nodes import VERSIONS, started_node


class TestStreams(BrokerContract):
    @pytest.fixture(autouse=True, params=VERSIONS)
    def _server(self, request: pytest.FixtureRequest) -> None:
        node: RabbitMqNode = request.getfixturevalue("rabbitmq" if request.param is None else "rabbitmq_4")
        self._url = node.stream_url

    def url(self) -> str:
        return self._url

    def write_unreadable(self, channel: str) -> int:
        async def send() -> None:
            async with rstream.Producer(**login(self._url)) as producer:
                for each in bad:
                    await producer.send_wait(f"{channel}-0", each)

        bad: list[Any] = [
            b"plain text",
            b"",
            b"\x00Ss\xc0\x04\x01\xa1\x01\xff\x00Su\xa0\x01x",  # an id that is not UTF-8
            b"\x00Ss\xc0\x04\x01\xa1\x017\x00Su\xb0\x00\x00\x00\x09x",  # cut off
            rstream.AMQPMessage(body=b"x", application_properties={"flyball-event-time": "yesterday"}),
            rstream.AMQPMessage(body=b"x", application_properties={"flyball-key": 5}),
        ]
        asyncio.run(send())
        return len(bad)


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
    event_time_s=st.none() | st.floats(-(2.0**53), 2.0**53),
    content_type=st.none() | st.text(st.characters(max_codepoint=127), min_size=1, max_size=40),
)


@given(messages)
def test_any_message_comes_back_as_it_was(message: Message) -> None:
    assert decode(encode(message), "log", 0) == (message, None)


@given(messages)
def test_another_amqp_library_reads_the_same(message: Message) -> None:
    theirs = rstream.amqp_decoder(encode(message))
    assert theirs.properties.message_id == message.id.encode()
    assert b"".join([theirs.body] if isinstance(theirs.body, bytes) else theirs.body or []) == message.body


@given(st.binary(max_size=60))
def test_anything_else_is_unreadable_or_read_but_never_breaks(raw: bytes) -> None:
    message, unreadable = decode(raw, "log", 5)
    assert unreadable is None or (message.id, message.body) == ("log:5", raw) or "flyball" in unreadable


def test_a_message_with_an_empty_id_is_named_by_its_offset() -> None:
    raw = b"\x00Ss\xc0\x03\x01\xa1\x00\x00Su\xa0\x01x"
    assert decode(raw, "log", 5)[0].id == "log:5"
    assert decode(raw, "log", 6)[0].id == "log:6"


@given(messages, st.data())
def test_a_damaged_message_never_breaks(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(raw[: data.draw(st.integers(0, len(raw)))]), "log", 5)


# --- beside plain programs -------------------------------------------------------------------------------


def test_messages_compressed_in_a_way_we_cannot_read_are_unreadable_and_others_are_read(
    rabbitmq: RabbitMqNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, url = fresh(), rabbitmq.stream_url

    class Zstd(NoneCompressionCodec):
        def compression_type(self) -> int:
            return CompressionType.Zstd.value

    async def write() -> None:
        ours = [rstream.AMQPMessage(body=b"%d" % number) for number in range(3)]
        confirmed = asyncio.Event()

        def on_confirm(_: Any) -> None:
            confirmed.set()

        with monkeypatch.context() as patch:
            patch.setitem(StreamCompressionCodecs.available_compress_codecs, CompressionType.Zstd, Zstd())
            async with rstream.Producer(**login(url)) as producer:
                for kind in (CompressionType.Gzip, CompressionType.Zstd, CompressionType.Gzip):
                    confirmed.clear()
                    await producer.send_sub_entry(f"{log}-0", ours, kind, on_publish_confirm=on_confirm)
                    await confirmed.wait()
                await producer.send_wait(f"{log}-0", rstream.AMQPMessage(body=b"last"))

    async def scenario() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            await write()
            receiver = await broker.subscribe(log, "all", start="earliest")
            got = await take(receiver, 10)
            await receiver.ack(*got)
            bodies = [None if each.unreadable else each.message.body for each in got]
            assert bodies == [b"0", b"1", b"2", None, None, None, b"0", b"1", b"2", b"last"]
            assert [each.offset for each in got] == list(range(10))
            assert "3 messages are compressed" in str(got[3].unreadable)
            assert got[3].message.body
            await receiver.close()
            stored = await records(broker, log, 0, 0, 10)
            assert [record.unreadable for record in stored] == [each.unreadable for each in got]
        with open_log_reader(url, log) as reader:
            read = [body for chunk in reader.read_bodies(0, 0, 10) for body in chunk.bodies]
        assert read == [each.message.body for each in got]

    asyncio.run(scenario())


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
            message, offset = await wait_at_most(seen.get(), 60)
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
def installed_fragile() -> Iterator[RabbitMqNode]:
    yield from node_with_stream(None)


@pytest.fixture(scope="module")
def fragile_4() -> Iterator[RabbitMqNode]:
    yield from node_with_stream(4)


@pytest.fixture(params=VERSIONS)
def fragile(request: pytest.FixtureRequest) -> RabbitMqNode:
    """A node to kill and to freeze."""
    node: RabbitMqNode = request.getfixturevalue("installed_fragile" if request.param is None else "fragile_4")
    return node


def node_with_stream(version: int | None) -> Iterator[RabbitMqNode]:
    """Start a node that has had a stream for a moment.

    RabbitMQ 3.10 writes down about a second after the very first stream of a node was declared that there is a
    coordinator of streams. Killed before that, it comes back without it, and with it all its streams are lost
    from sight (their files stay). This is the only window: once the coordinator is on record, streams are
    entries of its log, which is synced, and one that was declared just before the kill is there again.
    """

    async def declare_first(url: str) -> None:
        async with await connect(url) as broker:
            await broker.declare(fresh(), "log")

    for node in started_node(version):
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


def test_a_frozen_server_ends_a_batch_that_is_being_written(fragile: RabbitMqNode) -> None:
    """More than fits into the buffers on the way: the call waits in the middle of writing."""
    log, big = fresh(), [Message(bytes(1_000_000)) for _ in range(40)]

    async def scenario() -> None:
        async with await connect(fragile.stream_url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log)
            await sender.send_batch(numbered(1))
            fragile.pause()
            try:
                results = await sender.send_batch(big)
            finally:
                fragile.resume()
            assert {type(result.error) for result in results} == {Unconfirmed}
            assert sorted(await _send_until_confirmed(broker, log, big, 40)) == sorted(ids(big))

    asyncio.run(scenario())


# --- stored only when stored -------------------------------------------------------------------------------------


def test_an_unfit_message_fails_alone(rabbitmq: RabbitMqNode) -> None:
    log, sent = fresh(), numbered(100)
    sent[50] = Message(b"", headers={"n": 2**70})
    good = [*sent[:50], *sent[51:]]

    async def scenario() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log, producer="shop")
            for duplicate in (False, True):
                results = await sender.send_batch(sent, sequence=0)
                assert is_permanent(results[50].error)
                assert [result.duplicate for result in results if result.ok] == [duplicate] * 99
            stored = await records(broker, log, 0, *await broker.bounds(log, 0))
            assert [record.message.id for record in stored] == ids(good)

    asyncio.run(scenario())


def through(proxy: FaultProxy, node: RabbitMqNode, options: str = "") -> str:
    return node.stream_url.replace(f":{node.ports.stream}/", f":{proxy.port}/") + options


def test_a_call_that_is_given_up_while_the_socket_is_full_leaves_nothing_counted_as_sent(
    rabbitmq: RabbitMqNode,
) -> None:
    log, sent = fresh(), [Message(bytes(1_000_000)) for _ in range(40)]

    async def scenario() -> None:
        with FaultProxy(rabbitmq.ports.stream) as proxy:
            async with await connect(through(proxy, rabbitmq, "&confirm_timeout_s=60")) as broker:
                await broker.declare(log, "log")
                sender = await broker.sender(log, producer="shop")
                await sender.send_batch(numbered(1), sequence=0)
                proxy.stall()
                first = asyncio.create_task(sender.send_batch(sent, sequence=1))
                second = asyncio.create_task(sender.send_batch(numbered(5), sequence=41))
                await asyncio.wait([first], timeout=1.0)
                first.cancel()
                await asyncio.wait([first])
                proxy.flow()
                assert {type(result.error) for result in await second} == {Unconfirmed}  # it would leave a gap
                assert all(result.ok for result in await sender.send_batch(sent, sequence=1))
                stored = await records(broker, log, 0, 1, 1000)
                assert [record.message.id for record in stored] == ids(sent)

    asyncio.run(scenario())


def test_a_connection_that_breaks_in_the_middle_of_a_batch_is_reported_at_once(rabbitmq: RabbitMqNode) -> None:
    log, sent = fresh(), [Message(bytes(1_000_000)) for _ in range(40)]

    async def scenario() -> None:
        with FaultProxy(rabbitmq.ports.stream) as proxy:
            # The watchdog looks after half a minute only.
            async with await connect(through(proxy, rabbitmq, "&confirm_timeout_s=60")) as broker:
                await broker.declare(log, "log")
                sender = await broker.sender(log)
                await sender.send_batch(numbered(1))
                proxy.stall()
                sending = asyncio.create_task(sender.send_batch(sent))
                await asyncio.wait([sending], timeout=1.0)
                assert not sending.done()
                proxy.cut()
                proxy.flow()
                began_s = time.monotonic()
                assert Unconfirmed in {type(result.error) for result in await sending}
                assert time.monotonic() - began_s < 15

    asyncio.run(scenario())


def test_repeats_without_a_key_are_recognised_in_every_partition(rabbitmq: RabbitMqNode) -> None:
    log, sent = fresh(), numbered(700)

    async def scenario() -> None:
        async with await connect(rabbitmq.stream_url) as broker:
            await broker.declare(log, "log", partitions=3)
            sender = await broker.sender(log, producer="meter")
            for first in (0, 200, 100, 400, 350):
                results = await sender.send_batch(sent[first : first + 350], sequence=first)
                assert all(result.ok for result in results)
            stored = [
                record.message.id
                for number in range(3)
                for record in await records(broker, log, number, *await broker.bounds(log, number))
            ]
            assert sorted(stored) == sorted(ids(sent))

    asyncio.run(scenario())


def test_what_is_slowly_on_its_way_is_waited_for(rabbitmq: RabbitMqNode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        log = fresh("slow")
        url = rabbitmq.stream_url.replace(str(rabbitmq.ports.stream), str(proxy.port))
        async with await connect(rabbitmq.stream_url) as broker, await connect(url) as slow:
            await broker.declare(log, "log")
            sender = await slow.sender(log)
            (result,) = await sender.send_batch([Message(bytes(1_200_000))])
            assert result.error is None
            assert await broker.bounds(log, 0) == (0, 1)
            await broker.delete(log)

    # It takes three times as long, as 8 MB at 1 Mbit/s takes twice the usual 30 s.
    monkeypatch.setattr("flyball.brokers.rabbitmq_stream.sender._PATIENCE_S", 4.0)
    with FaultProxy(rabbitmq.ports.stream, bytes_per_s=100_000) as proxy:
        asyncio.run(scenario(proxy))


# --- connections that break, or never come about ---------------------------------------------------------------


@pytest.fixture
def resetting_port() -> Iterator[int]:
    """A port that resets every connection at once, like a proxy whose server is away."""
    listener = socket.create_server(("127.0.0.1", 0))

    def reset_all() -> None:
        with suppress(OSError):
            while True:
                end, _ = listener.accept()
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()

    threading.Thread(target=reset_all, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def settings_of(url: str) -> StreamSettings:
    return StreamSettings.of(BrokerUrl.parse(url))


def test_a_connection_that_is_reset_while_it_is_being_made_is_unreachable(resetting_port: int) -> None:
    """In one of some hundred attempts pika raises ValueError, which would end the thread of a group."""
    settings = settings_of(f"rabbitmq-stream://127.0.0.1:1/?amqp_port={resetting_port}")
    for _ in range(1000):
        with pytest.raises(Unreachable):
            open_amqp(settings)


def test_a_login_that_is_reset_does_not_wait_for_an_answer(resetting_port: int) -> None:
    settings = settings_of(f"rabbitmq-stream://127.0.0.1:{resetting_port}/")

    async def scenario() -> None:
        for _ in range(100):  # in about half of them the reset is there before the first request is written
            with pytest.raises(Unreachable) as caught:
                await StreamClient.open_to(settings)
            assert "TimeoutError" not in str(caught.value)

    asyncio.run(scenario())


def test_a_request_on_a_lost_connection_does_not_wait_for_an_answer(rabbitmq: RabbitMqNode) -> None:
    async def scenario() -> None:
        lost = asyncio.Event()
        with FaultProxy(rabbitmq.ports.stream) as proxy:
            client = await StreamClient.open_to(settings_of(through(proxy, rabbitmq)), lambda _: lost.set())
            proxy.stall()
            request = asyncio.create_task(client.query_publisher_sequence("any", "shop"))
            await asyncio.sleep(0)
            proxy.cut()
            with pytest.raises(ConnectionClosed):
                await request
            await lost.wait()
            with pytest.raises(ConnectionClosed):
                await client.query_publisher_sequence("any", "shop")
            await client.abandon()
            with pytest.raises(ConnectionClosed):
                await client.query_publisher_sequence("any", "shop")

    asyncio.run(scenario())


def test_a_login_that_nobody_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "group"):
        monkeypatch.setattr(f"flyball.brokers.rabbitmq_stream.{module}.LOGIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts connections, nobody reads them
        port = mute.getsockname()[1]
        settings = settings_of(f"rabbitmq-stream://127.0.0.1:{port}/?amqp_port={port}")
        with pytest.raises(Unreachable):
            asyncio.run(StreamClient.open_to(settings))
        with pytest.raises(Unreachable):
            open_amqp(settings)


@pytest.mark.parametrize("count", [10, 50], ids=["shorter", "longer"])
@pytest.mark.parametrize("by_flyball", [True, False], ids=["flyball", "another program"])
def test_a_log_that_is_declared_again_is_read_from_its_beginning(
    rabbitmq_4: RabbitMqNode, count: int, by_flyball: bool
) -> None:
    """A group that read 30 messages of the old log must not take the first 30 of the new one for read."""
    url = rabbitmq_4.stream_url

    async def receive(receiver: Receiver, wanted: set[str]) -> None:
        got: list[str] = []
        async with asyncio.timeout(60):
            while not wanted <= {*got}:
                deliveries = await receiver.receive(timeout_s=1.0)
                got += ids(deliveries)
                await receiver.ack(*deliveries)
        assert len(got) == len(set(got))

    async def send(broker: Broker, log: str, messages: list[Message]) -> None:
        sender = await broker.sender(log)
        assert all(result.ok for result in await sender.send_batch(messages))
        await sender.close()

    def replace_stream(log: str) -> None:
        connection = open_amqp(StreamSettings.of(BrokerUrl.parse(url)))
        channel = connection.channel()
        channel.queue_delete(f"{log}-0")
        channel.queue_declare(f"{log}-0", durable=True, arguments={"x-queue-type": "stream"})
        connection.close()

    async def scenario() -> None:
        log = fresh()
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            old, new = numbered(30), numbered(count)
            await send(broker, log, old)
            receiver = await broker.subscribe(log, "readers", start="earliest")
            await receive(receiver, {message.id for message in old})
            if by_flyball:
                await broker.delete(log)
                await broker.declare(log, "log")
            else:
                await asyncio.to_thread(replace_stream, log)
            await send(broker, log, new)
            await receive(receiver, {message.id for message in new})
            await receiver.close()
            assert await broker.depth(log, "readers") == 0  # its new position is stored

    asyncio.run(scenario())
