"""The sink in Spark, on every kind of channel: what a plain program would have published, once, whatever fails."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.port import Kind
from flyball.servers.rabbitmq import RabbitMqNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 900
BATCH = 300
OF_LOG = {"columns": "id bigint, host string, load double null, time double", "event_time": "time"}


@pytest.fixture(params=["sqlite", "sqlite queue", "stream", "kafka", "amqp"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Kind]:
    """URL of a broker, and the kind of channel to write to."""
    match request.param:
        case "stream":
            node: RabbitMqNode = request.getfixturevalue("rabbitmq")
            return node.stream_url, "log"
        case "kafka":
            return str(request.getfixturevalue("kafka_url")), "log"
        case "amqp":
            return str(request.getfixturevalue("amqp_url")), "queue"
        case "sqlite queue":
            return f"sqlite:///{tmp_path / 'target.db'}", "queue"
        case _:
            return f"sqlite:///{tmp_path / 'target.db'}", "log"


def events(first: int, stop: int) -> list[dict[str, Any]]:
    rng = random.Random(first)
    return [
        {
            "id": number,
            "host": f"h{rng.randrange(5)}",
            "load": rng.choice([None, 0.5, 2.0]),
            "time": 1.7e9 + number,
        }
        for number in range(first, stop)
    ]


async def declare(url: str, channel: str, kind: Kind, partitions: int = 1) -> None:
    async with await connect(url) as broker:
        await broker.declare(channel, kind, partitions=partitions)


async def publish(url: str, log: str, bodies: Sequence[bytes]) -> None:
    async with await connect(url) as broker:
        await broker.declare(log, "log", partitions=2)
        sender = await broker.sender(log)
        messages = [Message(body, key=str(number).encode()) for number, body in enumerate(bodies)]
        for result in await sender.send_batch(messages):
            assert result.ok


async def content(url: str, channel: str, kind: Kind, expected: int, partitions: int = 1) -> list[Message]:
    """The messages of a log, or those that wait in a queue: `expected` and what comes with them."""
    async with await connect(url) as broker:
        if kind == "log":
            found: list[Message] = []
            for partition in range(partitions):
                _, end = await broker.bounds(channel, partition)
                async for records in broker.read(channel, partition, 0, end):
                    found += [record.message for record in records]
            return found
        receiver = await broker.receiver(channel, window=10 * expected + 100)
        deliveries = await receiver.receive(1_000, timeout_s=60.0)
        while more := await receiver.receive(1_000, timeout_s=60.0 if len(deliveries) < expected else 2.0):
            deliveries += more
        await receiver.ack(*deliveries)
        return [delivery.message for delivery in deliveries]


def source(spark: SparkSession, url: str, log: str) -> DataFrame:
    options = {"url": url, "log": log, "max_rows": str(BATCH), **OF_LOG}
    return spark.readStream.format("flyball").options(**options).load().where("_kind = 'event'")


def as_messages(rows: DataFrame) -> DataFrame:
    return rows.selectExpr(
        "host AS key",
        "to_json(struct(id, host, load)) AS value",
        "map('kind', 'event', 'id', cast(id AS string)) AS headers",
        "timestamp_seconds(time) AS timestamp",
    )


def run(rows: DataFrame, checkpoint: Path, mode: str = "append", **options: str) -> None:
    """A query that ends by itself; raises what ended it otherwise."""
    writer = rows.writeStream.format("flyball").options(**options).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def as_tuple(message: Message) -> tuple[Any, ...]:
    return message.body, message.key, dict(message.headers), message.event_time_s


def reference(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What a plain program publishes."""
    return [
        (
            json.dumps(
                {name: row[name] for name in ("id", "host", "load") if row[name] is not None},
                separators=(",", ":"),
            ).encode(),
            row["host"].encode(),
            {"kind": "event", "id": str(row["id"])},
            row["time"],
        )
        for row in rows
    ]


def in_order(tuples: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(tuples, key=lambda row: int(row[2]["id"]))


def test_rows_arrive_as_a_plain_program_would_have_published_them(
    spark: SparkSession, tmp_path: Path, target: tuple[str, Kind]
) -> None:
    url, kind = target
    origin, channel = f"sqlite:///{tmp_path / 'origin.db'}", f"sink-{uuid4().hex}"
    rows = events(0, ROWS)
    asyncio.run(publish(origin, "events", [json.dumps(row).encode() for row in rows]))
    asyncio.run(declare(url, channel, kind))
    stream = as_messages(source(spark, origin, "events"))
    run(stream, tmp_path / "checkpoint", url=url, channel=channel)
    messages = asyncio.run(content(url, channel, kind, ROWS))
    assert in_order([as_tuple(message) for message in messages]) == reference(rows)
    assert len({message.id for message in messages}) == ROWS

    # Another run of the same query continues; a query of its own writes everything, under ids of its own.
    more = events(ROWS, ROWS + 50)
    asyncio.run(publish(origin, "events", [json.dumps(row).encode() for row in more]))
    run(stream, tmp_path / "checkpoint", url=url, channel=channel)
    run(stream, tmp_path / "other", url=url, channel=channel)
    total = 50 + ROWS + 50 + (ROWS if kind == "log" else 0)
    again = asyncio.run(content(url, channel, kind, total))
    everything = [*(rows if kind == "log" else ()), *more, *rows, *more]
    assert in_order([as_tuple(message) for message in again]) == in_order(reference(everything))
    assert len({message.id for message in again}) == total


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_batch_that_is_repeated_after_a_failure_adds_what_was_missing(
    spark: SparkSession, tmp_path: Path, target: tuple[str, Kind], shuffled: bool
) -> None:
    """A row in the middle fails in the first run, when others of its batch are stored already."""
    url, kind = target
    origin, channel = f"sqlite:///{tmp_path / 'origin.db'}", f"sink-{uuid4().hex}"
    rows = events(0, ROWS)
    asyncio.run(publish(origin, "events", [json.dumps(row).encode() for row in rows]))
    asyncio.run(declare(url, channel, kind))
    poison = tmp_path / "poison"
    poison.touch()
    stream = source(spark, origin, "events")
    checked = _failing(stream.repartition(3, "host") if shuffled else stream, poison, at=ROWS * 2 // 3)
    with pytest.raises(Exception, match="poison"):
        run(as_messages(checked), tmp_path / "checkpoint", url=url, channel=channel)
    poison.unlink()
    run(as_messages(checked), tmp_path / "checkpoint", url=url, channel=channel)
    messages = asyncio.run(content(url, channel, kind, ROWS))
    by_id = {message.id: message for message in messages}
    assert in_order([as_tuple(message) for message in by_id.values()]) == reference(rows)
    if kind == "log":
        assert len(messages) == ROWS, "a log that drops repeats has every row once"


def _failing(rows: DataFrame, poison: Path, at: int) -> DataFrame:
    """The same rows in small Arrow batches; while the file exists, the row `at` fails."""
    import pyarrow as pa

    path = str(poison)

    def check(batches: Any) -> Any:
        import time
        from pathlib import Path

        for batch in batches:
            for first in range(0, batch.num_rows, 20):
                part: pa.RecordBatch = batch.slice(first, 20)
                if at in part.column("id").to_pylist() and Path(path).exists():
                    time.sleep(2)  # until the sink has sent what came before
                    raise RuntimeError("poison")
                yield part

    return rows.mapInArrow(check, rows.schema)


def test_groups_of_an_aggregation_with_a_watermark_are_written_once(spark: SparkSession, tmp_path: Path) -> None:
    """The source's time, as a timestamp, carries a watermark."""
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    url = f"sqlite:///{tmp_path / 'broker.db'}"
    rows = events(0, ROWS)
    last = {"id": -1, "host": "end", "load": None, "time": 1.7e9 + 2 * ROWS}
    asyncio.run(publish(url, "events", [json.dumps(row).encode() for row in [*rows, last]]))
    asyncio.run(declare(url, "counts", "log"))
    counted = (
        source(spark, url, "events")
        .withColumn("when", F.timestamp_seconds("time"))
        .withWatermark("when", "60 seconds")
        .groupBy(F.window("when", "100 seconds"), "host")
        .count()
        .selectExpr("concat(host, ' ', unix_seconds(window.start)) AS key", "cast(count AS string) AS value")
    )
    run(counted, tmp_path / "checkpoint", url=url, channel="counts")
    expected = Counter(f"{row['host']} {int(row['time']) // 100 * 100}".encode() for row in rows)
    found = [(message.key, int(message.body)) for message in asyncio.run(content(url, "counts", "log", 0))]
    assert len(found) == len(set(found))
    assert dict(found) == expected


def test_a_column_names_the_channel_of_each_row(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    frame = spark.createDataFrame([(f"c{n % 3}", f"{n}") for n in range(30)], "channel string, value string")
    frame.write.format("flyball").mode("append").options(url=url, declare="log", partitions="2").save()
    for number in range(3):
        found = asyncio.run(content(url, f"c{number}", "log", 10, partitions=2))
        assert sorted(int(message.body) for message in found) == list(range(number, 30, 3))


def test_a_batch_job_writes_once_under_its_id(spark: SparkSession, target: tuple[str, Kind]) -> None:
    url, kind = target
    channel = f"sink-{uuid4().hex}"
    frame = spark.range(500).repartition(3).selectExpr("cast(id AS string) AS value")
    job = frame.write.format("flyball").mode("append").options(url=url, channel=channel, declare=kind)
    for _ in range(2):
        job.option("write_id", "nightly-17").save()
    messages = asyncio.run(content(url, channel, kind, 500 if kind == "log" else 1000))
    assert len({message.id for message in messages}) == 500
    assert {int(message.body) for message in messages} == set(range(500))
    assert len(messages) == (500 if kind == "log" else 1000)


def test_rows_that_no_broker_can_store_end_the_job_or_become_dead_letters(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}?max_body_bytes=1000"
    rows = [(b"fine", None), (None, None), (b"x" * 2000, None), (b"also fine", "x" * 300)]
    frame = spark.createDataFrame(rows, "value binary, id string").coalesce(1)
    job = frame.write.format("flyball").mode("append").options(url=url, channel="orders", declare="log")
    with pytest.raises(Exception, match=r"a row for 'orders' cannot be stored: its value is null .*on_refused"):
        job.save()
    job.option("on_refused", "deadletter").save()
    assert [message.body for message in asyncio.run(content(url, "orders", "log", 0))] == [b"fine"]
    dead = asyncio.run(content(url, "orders.dead-letter", "log", 0))
    assert [message.headers["flyball-channel"] for message in dead] == ["orders"] * 3
    errors = [str(message.headers["flyball-error"]) for message in dead]
    assert errors[0] == "its value is null"
    assert any("2000 bytes" in error for error in errors)
    assert any("at most 255 bytes" in error for error in errors)
    assert {message.body[:5] for message in dead} == {b"", b"xxxxx", b"also "}
