"""Triggers that end by themselves read what was in the log when the query started: all of it, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from flyball.brokers import Message, connect
from flyball.errors import InvalidValue
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.servers.rabbitmq import RabbitMqNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = {"columns": "id bigint, event_time double", "event_time": "event_time"}


def publish(url: str, channel: str, first: int, stop: int, *, partitions: int | None = None) -> None:
    """Events with the ids first … stop - 1, into a log with that many partitions, or into a queue."""

    async def send() -> None:
        async with await connect(url) as broker:
            if partitions is None:
                await broker.declare(channel)
            else:
                await broker.declare(channel, "log", partitions=partitions)
            sender = await broker.sender(channel)
            bodies = [json.dumps({"id": number, "event_time": 1.7e9 + number}) for number in range(first, stop)]
            messages = [Message(body.encode(), key=str(number).encode()) for number, body in enumerate(bodies)]
            for result in await sender.send_batch(messages):
                assert result.ok

    asyncio.run(send())


class Job:
    """A query of its own on each run, all with one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self._spark, self._folder, self._options = spark, folder, options

    def run(self, trigger: str, in_first_batch: Callable[[], None] = lambda: None) -> list[list[int]]:
        """The ids that each batch of the query brought, once it has ended by itself."""
        batches: list[list[int]] = []

        def take(rows: DataFrame, _batch: int) -> None:
            if not batches:
                in_first_batch()
            batches.append([row["id"] for row in rows.toArrow().to_pylist()])

        stream = self._spark.readStream.format("flyball").options(**self._options, **COLUMNS).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(self._folder))
        query = (writer.trigger(once=True) if trigger == "once" else writer.trigger(availableNow=True)).start()
        query.awaitTermination()
        return batches


def ids(batches: list[list[int]]) -> Counter[int]:
    return Counter(id for batch in batches for id in batch)


def check_both_triggers(spark: SparkSession, folder: Path, url: str, rows: int) -> None:
    log, max_rows = f"now-{uuid4().hex}", rows // 4
    publish(url, log, 0, rows, partitions=3)
    job = Job(spark, folder / "checkpoint", url=url, log=log, max_rows=str(max_rows))

    batches = job.run("availableNow", lambda: publish(url, log, rows, rows + 300, partitions=3))
    assert ids(batches) == Counter(range(rows)), "all that was there at the start, without what came meanwhile"
    assert len(batches) >= 4
    assert max(map(len, batches)) <= max_rows

    assert ids(job.run("availableNow")) == Counter(range(rows, rows + 300))
    assert ids(job.run("availableNow")) == Counter()

    publish(url, log, rows + 300, 2 * rows, partitions=3)
    (batch,) = job.run("once")
    assert Counter(batch) == Counter(range(rows + 300, 2 * rows)), "once is a single batch, beyond max_rows"


def test_all_rows_of_an_embedded_log_are_read_and_later_ones_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    check_both_triggers(spark, tmp_path, f"sqlite:///{tmp_path / 'broker.db'}", 20_000)


def test_all_rows_of_a_rabbitmq_stream_are_read_and_later_ones_by_the_next_run(
    spark: SparkSession, tmp_path: Path, rabbitmq: RabbitMqNode
) -> None:
    check_both_triggers(spark, tmp_path, rabbitmq.stream_url, 6_000)


def test_all_rows_of_a_kafka_topic_are_read_and_later_ones_by_the_next_run(
    spark: SparkSession, tmp_path: Path, kafka_url: str
) -> None:
    check_both_triggers(spark, tmp_path, kafka_url, 6_000)


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_all_messages_that_wait_in_a_queue_are_read(
    spark: SparkSession, tmp_path: Path, amqp_url: str, trigger: str
) -> None:
    queue = f"now-{uuid4().hex}"
    url = f"{amqp_url}{'&' if '?' in amqp_url else '?'}queue={queue}"
    job = Job(spark, tmp_path / "checkpoint", url=url, spool=f"sqlite:///{tmp_path / 'spool.db'}")
    for first, stop in ((0, 5_000), (5_000, 5_700)):
        publish(amqp_url, queue, first, stop)
        assert ids(job.run(trigger)) == Counter(range(first, stop))


def test_lanes_of_a_pipeline_refuse_a_trigger_that_ends() -> None:
    private = {"_pipeline": LaneOptions(result_queue="results").to_json()}
    reader = LogStreamReader({"url": "sqlite:///x.db", "log": "events", **COLUMNS, **private})
    with pytest.raises(InvalidValue, match="the lanes of a pipeline run until they are stopped"):
        reader.prepareForTriggerAvailableNow()
