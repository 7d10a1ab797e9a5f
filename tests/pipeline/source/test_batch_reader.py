"""`spark.read.format("flyball")`: all that is in a log, or a range of it, on every broker that has logs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.servers.rabbitmq import RabbitMqNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2_000


@pytest.fixture(params=["sqlite", "stream", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'broker.db'}"
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka_url"))
    node: RabbitMqNode = request.getfixturevalue("rabbitmq")
    return node.stream_url


def body(number: int) -> bytes:
    return b"no event" if number % 97 == 0 else json.dumps({"id": number, "time": 1.7e9 + number}).encode()


async def publish(url: str, log: str, first: int, stop: int) -> None:
    async with await connect(url) as broker:
        await broker.declare(log, "log", partitions=3)
        sender = await broker.sender(log)
        messages = [Message(body(number), key=str(number).encode()) for number in range(first, stop)]
        for result in await sender.send_batch(messages):
            assert result.ok


def reference(url: str, log: str) -> dict[tuple[int, int], bytes]:
    with open_log_reader(url, log) as reader:
        return {
            (partition, chunk.first_offset + at): content
            for partition in range(reader.partitions())
            for chunk in reader.read_bodies(partition, 0, reader.bounds(partition)[1])
            for at, content in enumerate(chunk.bodies)
        }


def test_a_job_reads_everything_or_a_range(spark: SparkSession, url: str) -> None:
    log = f"read-{uuid4().hex}"
    asyncio.run(publish(url, log, 0, ROWS))
    reading = spark.read.format("flyball").options(url=url, log=log)
    parsed = reading.options(columns="id bigint, time double", event_time="time", lanes="2").load()
    assert parsed.rdd.getNumPartitions() == 6, "each of the 3 partitions is read by 2 tasks"
    rows = parsed.collect()
    ids = Counter(row["id"] for row in rows if row["_kind"] == "event")
    assert ids == Counter(number for number in range(ROWS) if number % 97)
    assert Counter(row["_kind"] for row in rows)["malformed"] == len(range(0, ROWS, 97))
    # A table keeps its end, another one has what came meanwhile.
    asyncio.run(publish(url, log, ROWS, ROWS + 100))
    assert parsed.count() == ROWS
    assert reading.load().count() == ROWS + 100

    stored = reference(url, log)
    raw = spark.read.format("flyball").options(url=url, log=log, format="raw")
    ranges = {"startingOffsets": '{"0": 10, "2": 40}', "endingOffsets": '{"0": 25, "1": 0}'}
    found = {
        (row["_partition"], row["_offset"]): bytes(row["_body"]) for row in raw.options(**ranges).load().collect()
    }
    assert found == {
        place: content
        for place, content in stored.items()
        if (place[0] == 0 and 10 <= place[1] < 25) or (place[0] == 2 and place[1] >= 40)
    }
    nothing = {"startingOffsets": '{"0": 5, "1": 5, "2": 5}', "endingOffsets": '{"0": 5, "1": 5, "2": 5}'}
    assert raw.options(**nothing).load().count() == 0
    for wrong, message in (
        ({"endingOffsets": '{"0": 999999}'}, "offsets 0 to before 999999 cannot be read"),
        ({"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 4}'}, "offsets 5 to before 4 cannot be read"),
        (
            {"startingOffsets": '{"7": 5}', "endingOffsets": "latest"},
            "names partition 7, the log has partitions 0 to 2",
        ),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("flyball").options(url=url, log=log, format="raw", **wrong).load().count()


def test_what_retention_removed_is_an_error_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"

    async def fill() -> None:
        async with await connect(url) as broker:
            await broker.declare("events", "log", max_bytes=4_000)
            sender = await broker.sender("events")
            for number in range(60):
                await sender.send_batch([Message(b"%03d" % number * 100)])

    asyncio.run(fill())
    with open_log_reader(url, "events") as reader:
        first, end = reader.bounds(0)
    assert first > 0
    raw = spark.read.format("flyball").options(url=url, log="events", format="raw")
    assert raw.load().count() == end - first
    asked = raw.option("startingOffsets", '{"0": 0}')
    with pytest.raises(
        Exception, match=f"offsets 0 to {first - 1} of partition 0 of the log 'events' were removed"
    ):
        asked.load().count()
    assert asked.option("failOnDataLoss", "false").load().count() == end - first
