"""`regulate` with plain client code: a pika program and a confluent-kafka program that hardly change."""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import pika
import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import TopicPartition

from flyball.brokers import BrokerUrl, Message, connect
from flyball.consumer.external import RegulatedConsumer, regulate
from flyball.errors import InvalidValue
from flyball.servers.kafka import KafkaServer
from flyball.servers.rabbitmq import RabbitMqNode


async def send(url: str, name: str, kind: Any, count: int) -> None:
    async with await connect(url) as broker:
        await broker.declare(name, kind)
        sender = await broker.sender(name)
        await sender.send_batch([Message(b"%d" % number) for number in range(count)])


@pytest.mark.parametrize("goal", ["rate=100", "rate=100000"])
def test_a_pika_program(rabbitmq: RabbitMqNode, goal: str) -> None:
    queue, count = f"plain.{uuid.uuid4().hex}", 150
    asyncio.run(send(rabbitmq.url, queue, "queue", count))
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal=goal, max_window=6, period_s=0.25)
    bodies: list[bytes] = []
    most = 0

    def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
        nonlocal most
        most = max(most, channel.in_flight)
        bodies.append(body)
        connection.call_later(0.02, lambda: channel.basic_ack(method.delivery_tag))

    channel.basic_consume(queue, on_message)
    while len(bodies) < count or channel.in_flight:
        connection.process_data_events(time_limit=0.2)
    assert bodies == [b"%d" % number for number in range(count)]
    if goal == "rate=100":
        # 100 a second of 20 ms and the round trip: two to three places, whatever the machine; never all six
        assert 1.0 < channel.window < 5.0
        assert most < 6
    else:
        assert most == 6
    connection.close()


def is_below(rate_per_s: float, began_s: float, times_s: list[float]) -> bool:
    """Whether no message came earlier than the rate allows, but for a small burst."""
    return all(number <= 1.15 * rate_per_s * (at_s - began_s) + 3 for number, at_s in enumerate(times_s))


@pytest.mark.parametrize("handling_s", [0.0, 0.002, 0.01])
def test_a_blocking_pika_program_holds_a_rate_with_a_backlog(rabbitmq: RabbitMqNode, handling_s: float) -> None:
    """A BlockingConnection runs no timer while deliveries are pending: the loop must not depend on timers. And a
    rate is an upper bound from the first message on, also while the residence time is not known yet."""
    queue, count = f"plain.{uuid.uuid4().hex}", 3000
    asyncio.run(send(rabbitmq.url, queue, "queue", count))
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal="rate=50", max_window=64, period_s=0.5)
    times_s: list[float] = []

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        times_s.append(time.monotonic())
        if handling_s:
            time.sleep(handling_s)
        channel.basic_ack(method.delivery_tag)
        if len(times_s) == count or len(channel.steps()) >= 14:
            channel.stop_consuming()

    began_s = time.monotonic()
    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert len(times_s) < count, "no step was made before the queue was empty"
    # The median, because a stall of the machine makes one sample low and the next one high.
    rates = [step.measurement for step in channel.steps()[4:] if isinstance(step.measurement, float)]
    assert 25.0 < statistics.median(rates) < 75.0
    assert is_below(50.0, began_s, times_s)
    connection.close()


def test_a_pika_channel_that_was_settled_in_bulk_keeps_what_is_parked(rabbitmq: RabbitMqNode) -> None:
    queue = f"plain.{uuid.uuid4().hex}"
    asyncio.run(send(rabbitmq.url, queue, "queue", 10))
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal="rate=1", max_window=8)
    tags: list[int] = []
    channel.basic_consume(queue, lambda _channel, method, _properties, _body: tags.append(method.delivery_tag))
    while not tags or not channel._parked:
        connection.process_data_events(time_limit=0.1)
    with pytest.raises(InvalidValue, match="not handed over yet"):
        channel.basic_ack(0, multiple=True)
    channel.basic_ack(tags[-1], multiple=True)
    connection.close()


def test_a_pika_program_that_stops_gives_back_what_was_not_handed_over(rabbitmq: RabbitMqNode) -> None:
    queue, count = f"plain.{uuid.uuid4().hex}", 20
    asyncio.run(send(rabbitmq.url, queue, "queue", count))
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal="rate=1000", max_window=8)
    bodies: list[bytes] = []

    def on_message(channel: Any, method: Any, _: Any, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(bodies) in (3, count):
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert bodies == [b"%d" % number for number in range(3)]
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url)) as other:
        assert other.channel().queue_declare(queue, passive=True).method.message_count == count - 3
    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    assert bodies == [b"%d" % number for number in range(count)]
    connection.close()


def test_what_would_bypass_the_window_is_refused(rabbitmq: RabbitMqNode) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal="rate=1")
    with pytest.raises(InvalidValue, match=r"use basic_consume.* in place of the generator"):
        channel.consume("any")
    with pytest.raises(InvalidValue, match=r"past the window .* use basic_consume"):
        channel.basic_get("any")
    connection.close()


def test_automatic_acks_are_refused(rabbitmq: RabbitMqNode) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = regulate(connection.channel(), goal="rate=1")
    with pytest.raises(InvalidValue, match="auto_ack excludes goal rate=1"):
        channel.basic_consume("any", print, auto_ack=True)
    with pytest.raises(InvalidValue, match="sets its own prefetch"):
        channel.basic_qos(prefetch_count=4)
    connection.close()


def kafka_consumer(kafka: KafkaServer, topic: str, **options: Any) -> KafkaConsumer:
    ((host, port),) = BrokerUrl.parse(kafka.url).hosts
    plain = KafkaConsumer(
        {
            "bootstrap.servers": f"{host}:{port}",
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **options,
        }
    )
    plain.subscribe([topic])
    return plain


def next_offset(message: KafkaMessage) -> TopicPartition:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return TopicPartition(topic, partition, offset + 1)


@pytest.mark.parametrize(
    "finish",
    [
        pytest.param(lambda consumer, message: consumer.done(message), id="done"),
        pytest.param(lambda consumer, message: consumer.commit(message), id="commit a message"),
        pytest.param(
            lambda consumer, message: consumer.commit(offsets=[next_offset(message)]), id="commit offsets"
        ),
        pytest.param(lambda consumer, message: consumer.store_offsets(message), id="store a message"),
        pytest.param(
            lambda consumer, message: consumer.store_offsets(offsets=[next_offset(message)]), id="store offsets"
        ),
    ],
)
def test_a_confluent_kafka_program(
    kafka: KafkaServer, finish: Callable[[RegulatedConsumer[KafkaMessage], KafkaMessage], None]
) -> None:
    topic, count = f"plain.{uuid.uuid4().hex}", 150
    asyncio.run(send(kafka.url, topic, "log", count))
    plain = kafka_consumer(kafka, topic, **{"enable.auto.offset.store": False})
    consumer = regulate(plain, goal="rate=100000", max_window=4, period_s=0.25)
    working: list[tuple[float, Any]] = []
    offsets: list[int] = []
    most = 0
    while len(offsets) < count or working:
        message = consumer.poll(0.005)
        if message is not None:
            assert message.error() is None
            offsets.append(cast(int, message.offset()))
            working.append((time.monotonic() + 0.02, message))
            most = max(most, len(working))
            assert consumer.in_flight == len(working)
        while working and working[0][0] <= time.monotonic():
            finish(consumer, working.pop(0)[1])
    plain.close()
    assert offsets == sorted(set(offsets))
    assert len(offsets) == count
    assert most == 4


def test_a_synchronous_commit_of_everything_frees_the_window(kafka: KafkaServer) -> None:
    topic = f"plain.{uuid.uuid4().hex}"
    asyncio.run(send(kafka.url, topic, "log", 3))
    plain = kafka_consumer(kafka, topic)
    consumer = regulate(plain, goal="rate=100")
    for _ in range(3):
        while consumer.poll(1.0) is None:
            pass
        assert consumer.in_flight == 1
        consumer.commit(asynchronous=False)
        assert consumer.in_flight == 0
    plain.close()


def test_a_confluent_kafka_program_that_forgets_done_is_warned_once(
    kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"plain.{uuid.uuid4().hex}"
    asyncio.run(send(kafka.url, topic, "log", 3))
    plain = kafka_consumer(kafka, topic)
    consumer = regulate(plain, goal="rate=100")
    messages: list[KafkaMessage] = []
    for _ in range(200):
        message = consumer.poll(0.1)
        if message is not None:
            messages.append(message)
        if "consumer.done" in consumer.status:
            break
    for _ in range(5):
        assert consumer.poll(0.1) is None
    assert "call consumer.done(message)" in consumer.status
    (warning,) = (record.message for record in caplog.records if record.name == "flyball.consumer")
    assert "call consumer.done(message)" in warning
    assert len(messages) == 1
    consumer.done(messages[0])
    assert "consumer.done" not in consumer.status
    while consumer.poll(1.0) is None:
        pass
    plain.close()


def test_a_confluent_kafka_program_holds_a_rate_from_the_first_message_on(kafka: KafkaServer) -> None:
    topic, count = f"plain.{uuid.uuid4().hex}", 150
    asyncio.run(send(kafka.url, topic, "log", count))
    plain = kafka_consumer(kafka, topic)
    consumer = regulate(plain, goal="rate=50", period_s=0.5)
    times_s: list[float] = []
    began_s = time.monotonic()
    while len(times_s) < count:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            times_s.append(time.monotonic())
            consumer.done(message)
    plain.close()
    assert is_below(50.0, began_s, times_s)
    assert len(consumer.steps()) >= 2


def test_other_things_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"a pika channel or a confluent-kafka Consumer, got builtins\.int"):
        regulate(cast(Any, 3), goal="rate=1")
