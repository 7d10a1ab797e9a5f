"""The kafka:// adapter on a real broker: the contract, then what only Kafka has."""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import pickle
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trustme
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from flyball.brokers import Broker, Delivery, Message, connect
from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import (
    BrokerError,
    LoginRefused,
    NoSuchChannel,
    TooLarge,
    Unconfirmed,
    Unreachable,
    is_permanent,
)
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most
from flyball.servers.kafka import KafkaPorts, KafkaServer
from flyball.servers.ports import free_ports
from flyball.servers.proxy import FaultProxy
from flyball.testing import crash
from flyball.testing.broker_contract import BrokerContract, ids, numbered, records


class TestKafka(BrokerContract):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str) -> None:
        self._url = kafka_url

    def url(self) -> str:
        return self._url

    def write_unreadable(self, channel: str) -> int:
        producer = Producer({"bootstrap.servers": servers_of(self._url)})
        bad: list[list[tuple[str, bytes]]] = [
            [("event-time", b"2026-01-01T00:00:00Z")],
            [("event-time", b"nan")],
            [("content-type", b"\xff")],
            [("n", b"1"), ("header-types", b"{")],
            [("n", b"1"), ("header-types", b"[1]")],
            [("n", b"one"), ("header-types", b'{"n": "i"}')],
        ]
        for number, headers in enumerate(bad):
            producer.produce(channel, b"foreign", headers=[("message-id", b"%d" % number), *headers])
        assert producer.flush(30) == 0
        for _ in range(2):
            produce_with_header_name(self._url, channel, b"not \xff text")
        return len(bad) + 2


def fresh(prefix: str = "kafka") -> str:
    return f"{prefix}.{uuid.uuid4().hex[:12]}"


def servers_of(url: str) -> str:
    return url.split("/")[2].rpartition("@")[2]


def create(url: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers_of(url)})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result()


def produce_with_header_name(url: str, topic: str, name: bytes) -> None:
    """Write a record with a header whose name is any bytes: the C library may, its Python interface may not."""
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_headers_new):
        function.restype = pointer
    error = ctypes.create_string_buffer(500)
    config = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(config, b"bootstrap.servers", servers_of(url).encode(), error, size(500))
    client = pointer(library.rd_kafka_new(number(0), config, error, size(500)))
    headers = pointer(library.rd_kafka_headers_new(size(1)))
    library.rd_kafka_header_add(headers, text(name), size(len(name)), text(b"v"), size(1))
    topic_kind, value_kind, headers_kind, end = map(number, (1, 4, 10, 0))  # of rd_kafka_vtype_t
    body = b"foreign"
    sent = library.rd_kafka_producev(
        client,
        topic_kind,
        text(topic.encode()),
        value_kind,
        text(body),
        size(len(body)),
        headers_kind,
        headers,
        end,
    )
    assert (sent, library.rd_kafka_flush(client, number(30_000))) == (0, 0)
    library.rd_kafka_destroy(client)


def produce_plainly(
    url: str, topic: str, values: list[tuple[bytes | None, bytes | None]], **settings: Any
) -> None:
    producer = Producer({"bootstrap.servers": servers_of(url)} | settings)
    for key, value in values:
        producer.produce(topic, value, key, headers=[("colour", b"red"), ("raw", b"\xff\x00")])
    assert producer.flush(30) == 0


# --- beside plain programs -------------------------------------------------------------------------------


def test_a_plain_program_reads_what_we_send(kafka_url: str) -> None:
    topic = fresh()

    async def send() -> Message:
        message = Message(b"body", key=b"k\xff", headers={"n": 3, "s": "x"}, content_type="text/plain")
        async with await connect(kafka_url) as broker:
            await broker.declare(topic, "log")
            results = await (await broker.sender(topic)).send_batch([message])
            assert results[0].offset == 0
        return message

    message = asyncio.run(send())
    consumer = Consumer(
        {"bootstrap.servers": servers_of(kafka_url), "group.id": fresh(), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    got: list[Any] = []
    for _ in range(100):
        got += consumer.consume(1, 0.5)
        if got:
            break
    consumer.close()
    headers = dict(got[0].headers())
    assert (got[0].value(), got[0].key()) == (b"body", b"k\xff")
    assert headers["message-id"] == message.id.encode()
    assert (headers["content-type"], headers["n"], headers["s"]) == (b"text/plain", b"3", b"x")


def test_we_read_what_a_plain_program_sends(kafka_url: str) -> None:
    topic = fresh()
    create(kafka_url, topic)
    produce_plainly(kafka_url, topic, [(b"k", b"one"), (None, None)])

    async def receive() -> None:
        async with await connect(kafka_url) as broker:
            first = [record.message for record in await records(broker, topic, 0, 0, 2)]
            again = [record.message for record in await records(broker, topic, 0, 0, 2)]
            assert first == again  # a foreign message has no id: its partition and offset are the id
            assert [message.id for message in first] == [f"{topic}:0:0", f"{topic}:0:1"]
            assert (first[0].body, first[0].key, dict(first[0].headers)) == (
                b"one",
                b"k",
                {"colour": "red", "raw": b"\xff\x00"},
            )
            assert (first[1].body, first[1].key) == (b"", None)
            assert first[0].event_time_s is not None

    asyncio.run(receive())


def test_headers_of_foreign_records_may_have_our_names_and_mean_something_else(kafka_url: str) -> None:
    topic = fresh()
    create(kafka_url, topic)
    producer = Producer({"bootstrap.servers": servers_of(kafka_url)})
    uuid_bytes = bytes(range(0xF0, 0x100))
    foreign: list[list[tuple[str, str | bytes | None]]] = [
        [("event-time", b"2026-01-01T00:00:00Z"), ("header-types", b"none"), ("content-type", b"\xff")],
        [("message-id", uuid_bytes)],
        [("message-id", None), ("empty", None)],
        [("message-id", b"")],
        [("producer-sequence", b"meter not-a-number")],
    ]
    for headers in foreign:
        producer.produce(topic, b"foreign", headers=headers)
    assert producer.flush(30) == 0
    produce_with_header_name(kafka_url, topic, b"\xff")  # unreadable, and nothing to a named producer

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            stored = await records(broker, topic, 0, 0, len(foreign))
            receiver = await broker.subscribe(topic, fresh("g"), start="earliest")
            got: list[Delivery] = []
            while len(got) < len(foreign) + 1:
                got += await receiver.receive(timeout_s=30)
            await receiver.ack(*got)
            assert "utf-8" in str(got.pop().unreadable)
            assert [each.message for each in got] == [each.message for each in stored]
            assert [each.unreadable for each in got] == [None] * len(foreign)
            assert [each.unreadable for each in stored] == [None] * len(foreign)
            messages = [each.message for each in got]
            assert dict(messages[0].headers) == {
                "event-time": "2026-01-01T00:00:00Z",
                "header-types": "none",
                "content-type": b"\xff",
            }
            assert (messages[0].content_type, messages[0].event_time_s is None) == (None, False)
            assert [message.id for message in messages] == [
                f"{topic}:0:0",
                uuid_bytes.hex(),
                f"{topic}:0:2",
                f"{topic}:0:3",
                f"{topic}:0:4",
            ]
            assert messages[2].headers == {"empty": b""}
            assert await (await broker.sender(topic, producer="meter")).last_sequence() is None

    asyncio.run(scenario())


def test_faststream_programs_speak_with_us(kafka_url: str) -> None:
    from faststream.confluent import KafkaBroker

    there, back = fresh(), fresh()

    async def scenario() -> None:
        async with await connect(kafka_url) as ours:
            await ours.declare(there, "log")
            await ours.declare(back, "log")
            theirs = KafkaBroker(servers_of(kafka_url))
            heard: asyncio.Queue[dict[str, int]] = asyncio.Queue()

            @theirs.subscriber(there, group_id=fresh(), auto_offset_reset="earliest")
            async def listen(body: dict[str, int]) -> None:
                heard.put_nowait(body)

            async with theirs:
                await theirs.start()
                message = Message(b'{"n": 1}', content_type="application/json")
                await (await ours.sender(there)).send_batch([message])
                assert await wait_at_most(heard.get(), 60) == {"n": 1}
                receiver = await ours.subscribe(back, fresh(), start="earliest")
                await theirs.publish({"n": 2}, back)
                (delivery,) = await receiver.receive(1, timeout_s=60)
                assert json.loads(delivery.message.body) == {"n": 2}
                assert delivery.message.content_type == "application/json"
                await receiver.ack(delivery)

    asyncio.run(scenario())


# --- logs with holes, reading in bulk ----------------------------------------------------------------------


def test_holes_of_transactions_are_stepped_over(kafka_url: str) -> None:
    topic = fresh()
    create(kafka_url, topic)
    producer = Producer({"bootstrap.servers": servers_of(kafka_url), "transactional.id": fresh()})
    producer.init_transactions(30)
    for turn in range(3):  # each transaction leaves a marker that takes an offset; the second one never happened
        producer.begin_transaction()
        for at in range(4):
            producer.produce(topic, b"%d-%d" % (turn, at))
        assert producer.flush(30) == 0  # what is to be aborted has to be there first
        (producer.abort_transaction if turn == 1 else producer.commit_transaction)(30)
    wanted = [b"%d-%d" % (turn, at) for turn in (0, 2) for at in range(4)]

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            first, end = await broker.bounds(topic, 0)
            assert (first, end) == (0, 15)
            stored = await records(broker, topic, 0, first, end)
            assert [record.message.body for record in stored] == wanted
            assert [record.offset for record in stored] == [0, 1, 2, 3, 10, 11, 12, 13]
            group = fresh("g")
            receiver = await broker.subscribe(topic, group, start="earliest")
            got: list[Delivery] = []
            while len(got) < 8:
                got += await receiver.receive(8, timeout_s=30)
            await receiver.ack(*got[::-1])  # in reverse: the prefix is only known at the end
            await receiver.close()
            again = await broker.subscribe(topic, group)
            assert await again.receive(1, timeout_s=1.0) == []

    asyncio.run(scenario())


def test_holes_of_compaction_are_stepped_over(kafka_url: str) -> None:
    """A compacted topic keeps the last record of a key: most offsets before it are missing."""
    topic = fresh()
    create(
        kafka_url,
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="100",
        delete_retention_ms="100",
    )
    for turn in range(4):  # a segment is closed by the next record that comes after its time
        produce_plainly(kafka_url, topic, [(b"%d" % (at % 3), b"%d-%d" % (turn, at)) for at in range(50)])
        time.sleep(0.2)

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            stored: list[Any] = []
            for _ in range(600):  # the broker's cleaner works when it wants to
                stored = await records(broker, topic, 0, 0, 200)
                if len(stored) < 150:
                    break
                await asyncio.sleep(0.2)
            offsets = [record.offset for record in stored]
            assert len(offsets) < 150, "nothing was compacted"
            assert (offsets[-1], offsets) == (199, sorted(set(offsets)))
            group = fresh("g")
            receiver = await broker.subscribe(topic, group, start="earliest", window=7)
            got: list[Delivery] = []
            while not got or got[-1].offset != 199:
                batch = await receiver.receive(7, timeout_s=30)
                assert batch, f"only up to offset {got[-1].offset if got else None}"
                await receiver.ack(*batch[::-1])
                got += batch
            assert {delivery.message.body for delivery in got} >= {b"3-47", b"3-48", b"3-49"}
            await receiver.close()
            assert await broker.depth(topic, group) == 0

    asyncio.run(scenario())


def read_all(reader: LogReader) -> list[tuple[int, bytes]]:
    return [
        (offset, body)
        for number in range(reader.partitions())
        for chunk in reader.read_bodies(number, 0, 1 << 40)
        for offset, body in zip(
            chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies)),
            chunk.bodies,
            strict=True,
        )
    ]


def _read_in_fork(reader: LogReader, answer: Any) -> None:
    answer.send(read_all(reader))


def test_the_bulk_reader_survives_pickling_and_forking(kafka_url: str) -> None:
    topic = fresh()
    create(kafka_url, topic, partitions=2)
    produce_plainly(kafka_url, topic, [(b"%d" % at, b"body %d" % at) for at in range(500)])
    with open_log_reader(kafka_url, topic) as reader:
        everything = read_all(reader)
        assert sorted(body for _, body in everything) == sorted(b"body %d" % at for at in range(500))
        first, end = reader.bounds(0)
        part = list(reader.read_bodies(0, first + 3, first + 7))
        assert [body for chunk in part for body in chunk.bodies] == [
            body for _, body in everything[: end - first][3:7]
        ]
        assert list(reader.read_bodies(0, end, end + 10)) == []
        with pickle.loads(pickle.dumps(reader)) as copy:
            assert read_all(copy) == everything
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_read_in_fork, args=(reader, there))
        child.start()
        assert here.recv() == everything
        child.join()
        with pytest.raises(InvalidValue, match="partitions 0 to 1, not 2"):
            reader.bounds(2)
    with open_log_reader(kafka_url, fresh()) as absent, pytest.raises(NoSuchChannel):
        absent.partitions()


def test_repeats_of_a_sender_are_dropped_by_the_reader(kafka_url: str) -> None:
    topic = fresh()

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            await broker.declare(topic, "log")
            sender = await broker.sender(topic)
            sent = numbered(10)
            await sender.send_batch(sent)
            receiver = await broker.subscribe(topic, fresh("g"), start="earliest")
            got: list[Delivery] = []
            while len(got) < 10:
                got += await receiver.receive(timeout_s=30)
            await receiver.ack(*got)
            after = numbered(1)
            await sender.send_batch([*sent, *after])
            assert ids(await receiver.receive(timeout_s=30)) == ids(after)
            assert await broker.depth(topic) == 21

    asyncio.run(scenario())


NAMED = """
import asyncio, sys
from flyball.brokers import Message, connect
async def main(url, topic, count):
    async with await connect(url) as broker:
        sender = await broker.sender(topic, producer="a meter")
        last = await sender.last_sequence()
        # Numbers that are there already come again, and those before them that other partitions may lack.
        for first in range(0 if last is None else max(0, last - 60), count, 20):
            numbers = range(first, min(first + 20, count))
            batch = [Message(b"%d" % at, id=f"m-{at}", key=b"%d" % at) for at in numbers]
            assert all(result.ok for result in await sender.send_batch(batch, sequence=first))
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def numbers_in(url: str, topic: str) -> list[int]:
    with open_log_reader(url, topic) as reader:
        return [
            int(body)
            for partition in range(reader.partitions())
            for chunk in reader.read_bodies(partition, *reader.bounds(partition))
            for body in chunk.bodies
        ]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_named_producer_that_is_killed_repeats_nothing(kafka_url: str, partitions: int) -> None:
    topic, count, rng = fresh(), 1200, random.Random(31)
    create(kafka_url, topic, partitions)
    command = [sys.executable, "-c", NAMED, kafka_url, topic, str(count)]
    kills = 0
    while len(numbers_in(kafka_url, topic)) < 900:
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        goal = len(numbers_in(kafka_url, topic)) + rng.randint(1, 400)
        while process.poll() is None and len(numbers_in(kafka_url, topic)) < goal:
            time.sleep(0.005)
        assert process.poll() in (None, 0), process.communicate()[1]
        process.kill()
        process.communicate()
        kills += 1
    subprocess.run(command, check=True)
    assert kills > 0
    assert sorted(numbers_in(kafka_url, topic)) == list(range(count))


def test_a_name_that_the_topic_does_not_know_yet_and_strangers(kafka_url: str) -> None:
    """Numbers of others, records without any, and more of them than are looked at first."""
    topic = fresh()

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            await broker.declare(topic, "log")
            one, two = [await broker.sender(topic, producer=name) for name in ("one", "one 1")]
            await one.send_batch(numbered(5), sequence=100)
            await (await broker.sender(topic)).send_batch(numbered(500))
            assert [await each.last_sequence() for each in (one, two)] == [104, None]
            await two.send_batch(numbered(5), sequence=7)
            again = await broker.sender(topic, producer="one")
            assert await again.last_sequence() == 104
            results = await again.send_batch(numbered(4), sequence=103)
            assert [result.duplicate for result in results] == [True, True, False, False]
            found = await records(broker, topic, 0, *await broker.bounds(topic, 0))
            assert len(found) == 5 + 500 + 5 + 2
            assert all(not record.message.headers for record in found)

    asyncio.run(scenario())


# --- errors ------------------------------------------------------------------------------------------------


def test_nobody_there_is_said_at_once() -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unreachable, match=f"no Kafka broker answers at kafka://127.0.0.1:{port}"):
        asyncio.run(connect(f"kafka://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka://", "names no host"),
        ("kafka://h:9092/topic", "path '/topic'"),
        ("kafka://h?colour=red", "unknown option 'colour'"),
        ("kafka://h?tls=yes", "must be 0 or 1"),
        ("kafka://h?mechanism=X", "PLAIN"),
        ("kafka://u:secret@h?group_protocol=x", "consumer or classic"),
    ],
)
def test_bad_urls_are_explained(url: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said) as caught:
        asyncio.run(connect(url))
    assert "secret" not in str(caught.value)


def test_login_and_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )  # Kafka reads no other kind
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (tmp_path / "server.pem").write_bytes(key + chain)
    with KafkaServer(users={"flyball": "s3cret word"}, certificate=tmp_path / "server.pem") as server:
        good = f"{server.url}&ca_file={tmp_path / 'ca.pem'}"

        async def scenario() -> None:
            async with await connect(good) as broker:
                await broker.declare("events", "log")
                results = await (await broker.sender("events")).send_batch(numbered(3))
                assert all(result.ok for result in results)
                assert "s3cret" not in repr(broker) + str(vars(broker))
            with pytest.raises(LoginRefused, match="refused the login") as refused:
                await connect(good.replace("s3cret%20word", "wr0ng"))
            assert "wr0ng" not in str(refused.value)
            with pytest.raises(Unreachable):  # the certificate's authority is unknown
                await connect(server.url + "&connect_timeout_s=3")

        asyncio.run(scenario())


# --- faults ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaServer]:
    """A broker to kill and to freeze."""
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="module")
def slow_kafka() -> Iterator[FaultProxy]:
    """A proxy that a broker names as its own address: clients reach it through the proxy only."""
    ports = KafkaPorts.free()
    with FaultProxy(ports.client) as proxy:
        addresses = f"CLIENT://127.0.0.1:{proxy.port},INTERNAL://127.0.0.1:{ports.internal}"
        with KafkaServer(ports=ports, fixed_ports=True, settings={"advertised.listeners": addresses}):
            yield proxy


@pytest.mark.parametrize("seed", [11])
def test_killed_clients_lose_nothing(kafka_url: str, seed: int) -> None:
    topic = fresh()
    create(kafka_url, topic, flush_messages="1")
    ledger = crash.kill_clients(kafka_url, topic, group=fresh("g"), seed=seed, messages=800, kills=4)
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 800


async def _send_until_confirmed(broker: Broker, topic: str, messages: list[Message], batch: int) -> list[str]:
    """Send again with the same id what was not confirmed; the ids in the order of their confirms."""
    sender, confirmed = await broker.sender(topic), []
    pending = list(messages)
    while pending:
        results = await sender.send_batch(pending[:batch])
        confirmed += [result.id for result in results if result.ok]
        assert all(isinstance(result.error, Unconfirmed) for result in results if not result.ok)
        done = {result.id for result in results if result.ok}
        pending = [message for message in pending if message.id not in done]
    return confirmed


@pytest.mark.parametrize("seed", [5])
def test_a_killed_broker_loses_nothing_it_confirmed(fragile: KafkaServer, seed: int) -> None:
    topic = fresh()

    async def declare() -> None:
        async with await connect(fragile.url) as broker:
            await broker.declare(topic, "log")

    asyncio.run(declare())
    ledger = crash.kill_broker(fragile, fragile.url, topic, group=fresh("g"), seed=seed, messages=3000)
    assert ledger.problems() == [], f"seed {seed}"
    assert len(set(ledger.sent)) == 3000


def test_a_frozen_broker_is_noticed_and_comes_back(fragile: KafkaServer) -> None:
    topic = fresh()

    async def scenario() -> None:
        async with await connect(fragile.url) as broker:
            await broker.declare(topic, "log")
            sender = await broker.sender(topic)
            await sender.send_batch(numbered(5))
            lost = numbered(5)
            fragile.pause()
            try:
                results = await sender.send_batch(lost)
                assert [type(result.error) for result in results] == [Unconfirmed] * 5
                assert not sender.blocked  # only sending again shows whether it is back
            finally:
                fragile.resume()
            confirmed = await _send_until_confirmed(broker, topic, lost, 5)
            assert confirmed == ids(lost)

    asyncio.run(scenario())


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_frozen_broker_took_after_all_is_not_sent_twice(fragile: KafkaServer, partitions: int) -> None:
    topic = fresh()

    async def scenario() -> None:
        async with await connect(fragile.url) as broker:
            await broker.declare(topic, "log", partitions=partitions)
            sender = await broker.sender(topic, producer="meter")
            sent = [Message(bytes(100_000)) for _ in range(40)]  # in several requests of the client
            assert all(result.ok for result in await sender.send_batch(sent[:10], sequence=0))
            fragile.pause()
            try:
                parts = [sender.send_batch(sent[first : first + 10], sequence=first) for first in (10, 20, 30)]
                for results in await asyncio.gather(*parts):
                    assert [type(result.error) for result in results] == [Unconfirmed] * 10
            finally:
                fragile.resume()
            for first in (10, 20, 30):
                while not all(
                    result.ok for result in await sender.send_batch(sent[first : first + 10], sequence=first)
                ):
                    await asyncio.sleep(0.05)
            found = [
                record.message.id
                for number in range(partitions)
                for record in await records(broker, topic, number, *await broker.bounds(topic, number))
            ]
            assert sorted(found) == sorted(ids(sent))

    asyncio.run(scenario())


def test_a_full_local_queue_shows_as_blocked_and_drains(fragile: KafkaServer) -> None:
    """More than the client's 128 MiB wait for a frozen broker; nothing is lost when it goes on."""
    topic = fresh()

    async def scenario() -> None:
        async with await connect(f"{fragile.url}?confirm_timeout_s=60") as broker:
            await broker.declare(topic, "log")
            sender = await broker.sender(topic)
            await sender.send_batch(numbered(1))
            big = [Message(bytes(1 << 20)) for _ in range(160)]
            fragile.pause()
            try:
                sending = asyncio.create_task(sender.send_batch(big))
                while not sender.blocked:
                    await asyncio.sleep(0.01)
                assert not sending.done()
            finally:
                fragile.resume()
            assert all(result.ok for result in await sending)
            assert (await broker.depth(topic), sender.blocked) == (161, False)

    asyncio.run(scenario())


def test_an_error_names_the_channel_that_was_deleted(kafka_url: str) -> None:
    topic = fresh()

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            await broker.declare(topic, "log")
            sender = await broker.sender(topic)
            await sender.send_batch(numbered(1))
            await broker.delete(topic)
            (result,) = await sender.send_batch(numbered(1))
            assert isinstance(result.error, BrokerError)
            assert topic in str(result.error)

    asyncio.run(scenario())


# --- records that a broker refuses, errors that pass -----------------------------------------------------------


def test_a_message_without_a_key_is_refused_by_a_compacted_topic_alone(kafka_url: str) -> None:
    topic = fresh()
    create(kafka_url, topic, cleanup_policy="compact")
    good = [Message(b"%d" % at, key=b"%d" % at) for at in range(300)]
    bad = numbered(3)

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            sender = await broker.sender(topic)
            results = await sender.send_batch([*bad[:1], *good[:100], *bad[1:], *good[100:]])
            refused = [result.id for result in results if is_permanent(result.error)]
            assert refused == ids(bad)
            assert [result.id for result in results if result.ok] == ids(good)
            found = await records(broker, topic, 0, *await broker.bounds(topic, 0))
            assert sorted(record.message.id for record in found) == sorted(ids(good))

    asyncio.run(scenario())


def test_small_messages_are_not_too_large_together(kafka_url: str) -> None:
    """A topic of another program takes less at once than the client puts together."""
    topic = fresh()
    create(kafka_url, topic, max_message_bytes="5000")
    sent = [Message(bytes(1000)) for _ in range(50)]
    sent[20] = Message(bytes(10_000))

    async def scenario() -> None:
        async with await connect(kafka_url) as broker:
            results = await (await broker.sender(topic)).send_batch(sent)
            assert [result.ok for result in results] == [at != 20 for at in range(50)]
            assert isinstance(results[20].error, TooLarge)
            assert await broker.depth(topic) == 49

    asyncio.run(scenario())


def test_a_receiver_goes_on_after_an_error_that_passes() -> None:
    """The group is full until its only member leaves."""
    topic, group, sent = fresh(), fresh("g"), numbered(10)

    async def scenario(url: str) -> None:
        async with await connect(url) as broker:
            await broker.declare(topic, "log")
            first = await broker.subscribe(topic, group, start="earliest")
            await (await broker.sender(topic)).send_batch(sent)
            got = await first.receive(3, timeout_s=60)
            await first.ack(*got)
            second = await broker.subscribe(topic, group)
            with pytest.raises(BrokerError):
                await second.receive(10, timeout_s=120)
            await first.close()
            late: list[str] = []
            while len(late) < 7:
                try:
                    batch = await second.receive(10, timeout_s=60)
                except BrokerError:
                    continue
                assert batch
                await second.ack(*batch)
                late += ids(batch)
            assert late == ids(sent[len(got) :])

    with KafkaServer(settings={"group.consumer.max.size": "1"}) as server:
        asyncio.run(scenario(server.url))


def test_a_frozen_broker_is_unreachable_for_a_declaration(
    fragile: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball.brokers.kafka.admin._REQUEST_S", 1.0)

    async def scenario() -> None:
        async with await connect(fragile.url) as broker:
            fragile.pause()
            try:
                with pytest.raises(Unreachable):
                    await broker.declare(fresh(), "log")
            finally:
                fragile.resume()

    asyncio.run(scenario())


@pytest.mark.parametrize("producer", [None, "meter"])
def test_what_is_slowly_on_its_way_is_waited_for(
    slow_kafka: FaultProxy, monkeypatch: pytest.MonkeyPatch, producer: str | None
) -> None:
    """It takes three times as long as the patience for a broker that only answers."""
    monkeypatch.setattr("flyball.brokers.kafka.producer._PATIENCE_S", 4.0)
    monkeypatch.setattr("flyball.brokers.kafka.producer._SEND_BUFFER_BYTES", 1 << 16)
    # Time for the broker's metadata, which comes over the same slow link.
    topic, url = fresh(), f"kafka://127.0.0.1:{slow_kafka.port}/?confirm_timeout_s=8"

    async def scenario() -> None:
        async with await connect(url) as broker:
            await broker.declare(topic, "log")
            sender = await broker.sender(topic, producer=producer)
            slow_kafka.set_bandwidth(100_000)
            (result,) = await sender.send_batch(
                [Message(bytes(1_200_000))], sequence=None if producer is None else 0
            )
            slow_kafka.set_bandwidth(None)
            assert result.error is None
            assert await broker.depth(topic) == 1

    asyncio.run(scenario())
