"""Logs that lose records before they are read, are created anew, or get partitions: named, or counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # it is documented
from pyspark.sql.streaming.datasource import ReadAllAvailable

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.url import BrokerUrl
from flyball.errors import InvalidValue
from flyball.pipeline.policy.positions import DataLost
from flyball.pipeline.source.complete_read import LossPolicy, positions_in, read_complete
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.servers.rabbitmq import RabbitMqNode

COLUMNS = {"columns": "id bigint, event_time double", "event_time": "event_time"}
PADDING = "x" * 2000


def append(url: str, log: str, first: int, stop: int, **declared: Any) -> None:
    """Events with the ids first … stop - 1, 2 kB each."""

    async def send() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log", **declared)
            sender = await broker.sender(log)
            for begin in range(first, stop, 100):
                ids = range(begin, min(stop, begin + 100))
                events = ((one, {"id": one, "event_time": 1.7e9 + one, "more": PADDING}) for one in ids)
                messages = [Message(json.dumps(event).encode(), key=b"%d" % one) for one, event in events]
                assert all(result.ok for result in await sender.send_batch(messages))

    asyncio.run(send())


def administer(url: str, log: str, action: str) -> None:
    async def work() -> None:
        async with await connect(url) as broker:
            await (broker.delete(log) if action == "delete" else broker.purge(log))

    asyncio.run(work())


class Job:
    """The calls that Spark makes of a source, from the position that the last batch reached."""

    def __init__(self, url: str, log: str, **options: str) -> None:
        self._options = {"url": url, "log": log, **COLUMNS, **options}
        self.reader = LogStreamReader(self._options)
        self.offset = self.reader.initialOffset()

    def batch(self) -> list[int]:
        """The ids of one batch with everything that is there."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        if end == self.offset:
            return []
        # What Spark stores is JSON; what reads is built anew elsewhere.
        start, end = json.loads(json.dumps(self.offset)), json.loads(json.dumps(end))
        elsewhere = LogStreamReader(self._options)
        rows: list[pa.RecordBatch] = []
        for partition in elsewhere.partitions(start, end):
            rows += elsewhere.read(partition)
        elsewhere.stop()
        self.offset = end
        return sorted(id for part in rows for id in part.column("id").to_pylist())


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    opened: list[Job] = []
    yield opened
    for job in opened:
        job.reader.stop()


def check_truncated(jobs: list[Job], url: str, log: str) -> None:
    """The first 100 were read, then some that were not are removed; the log has 3,000 in all."""
    with open_log_reader(url, log) as reader:
        first, end = reader.bounds(0)
    assert 100 < first < end == 3000
    strict, tolerant = jobs
    with pytest.raises(
        DataLost, match=rf"offsets 100 to {first - 1} of partition 0 of the log '{log}' were removed"
    ):
        strict.batch()
    assert tolerant.batch() == list(range(first, end))
    assert tolerant.offset["skipped"] == first - 100
    append(url, log, 3000, 3010)
    assert tolerant.batch() == list(range(3000, 3010))
    assert tolerant.offset["skipped"] == first - 100, "counted once"


def read_a_hundred(jobs: list[Job], url: str, log: str, **declared: Any) -> None:
    append(url, log, 0, 100, **declared)
    jobs += [Job(url, log), Job(url, log, failOnDataLoss="false")]
    assert [job.batch() for job in jobs] == [list(range(100))] * 2


def test_what_an_embedded_log_dropped_before_it_was_read_is_named(tmp_path: Path, jobs: list[Job]) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    read_a_hundred(jobs, url, "events", max_bytes=2_000_000)
    append(url, "events", 100, 3000, max_bytes=2_000_000)
    check_truncated(jobs, url, "events")


def test_what_a_rabbitmq_stream_dropped_before_it_was_read_is_named(
    rabbitmq: RabbitMqNode, jobs: list[Job]
) -> None:
    log = f"loss-{uuid4().hex}"
    read_a_hundred(jobs, rabbitmq.stream_url, log, max_bytes=2_000_000)
    append(rabbitmq.stream_url, log, 100, 3000, max_bytes=2_000_000)
    check_truncated(jobs, rabbitmq.stream_url, log)


def test_what_a_kafka_topic_dropped_before_it_was_read_is_named(kafka_url: str, jobs: list[Job]) -> None:
    log = f"loss-{uuid4().hex}"
    read_a_hundred(jobs, kafka_url, log)
    append(kafka_url, log, 100, 2000)
    administer(kafka_url, log, "purge")  # as retention does
    append(kafka_url, log, 2000, 3000)
    check_truncated(jobs, kafka_url, log)


def check_created_anew(jobs: list[Job], url: str, log: str) -> None:
    administer(url, log, "delete")
    append(url, log, 0, 40)
    strict, tolerant = jobs
    with pytest.raises(DataLost, match="ends at 40, but was read up to 100: the log was created anew"):
        strict.batch()
    assert tolerant.batch() == list(range(40))
    append(url, log, 40, 50)
    assert tolerant.batch() == list(range(40, 50))


def test_an_embedded_log_that_was_created_anew_is_named(tmp_path: Path, jobs: list[Job]) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    read_a_hundred(jobs, url, "events")
    check_created_anew(jobs, url, "events")


def test_a_rabbitmq_stream_that_was_created_anew_is_named(rabbitmq: RabbitMqNode, jobs: list[Job]) -> None:
    log = f"loss-{uuid4().hex}"
    read_a_hundred(jobs, rabbitmq.stream_url, log)
    check_created_anew(jobs, rabbitmq.stream_url, log)


def test_a_kafka_topic_that_was_created_anew_is_named(kafka_url: str, jobs: list[Job]) -> None:
    log = f"loss-{uuid4().hex}"
    read_a_hundred(jobs, kafka_url, log)
    check_created_anew(jobs, kafka_url, log)


def test_partitions_that_a_kafka_topic_gets_are_read_from_their_beginning(kafka_url: str, jobs: list[Job]) -> None:
    log = f"loss-{uuid4().hex}"
    read_a_hundred(jobs, kafka_url, log)
    ((host, port),) = BrokerUrl.parse(kafka_url).hosts
    admin = AdminClient({"bootstrap.servers": f"{host}:{port or 9092}"})
    for future in admin.create_partitions([NewPartitions(log, 3)]).values():
        future.result()
    append(kafka_url, log, 100, 400)
    assert [job.batch() for job in jobs] == [list(range(100, 400))] * 2
    assert [len(job.offset["next"]) for job in jobs] == [3, 3]
    assert jobs[0].batch() == []


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_replica_that_lags_behind_is_waited_for() -> None:
    looks = iter([[(0, 95)], [(0, 97)], [(0, 120)]])
    clock = Clock()
    starts, bounds, gaps = positions_in([100], lambda: next(looks), LossPolicy("events"), clock, clock.sleep)
    assert (starts, bounds, gaps) == ([100], [(0, 120)], [])
    assert clock.now_s > 0


def test_what_is_removed_between_planning_and_reading_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    append(url, "events", 0, 100)
    administer(url, "events", "delete")
    append(url, "events", 0, 60)
    clock = Clock()

    def read(fails: bool) -> Sequence[int]:
        with open_log_reader(url, "events") as reader:
            loss = LossPolicy("events", fails)
            chunks = read_complete(reader, 0, 50, 100, loss, clock, clock.sleep)
            return [json.loads(body)["id"] for chunk in chunks for body in chunk.bodies]

    with pytest.raises(DataLost, match="ends at 60, but was read up to 100"):
        read(fails=True)
    assert read(fails=False) == list(range(50, 60))


def test_a_wrong_value_of_the_option_is_refused() -> None:
    with pytest.raises(
        InvalidValue, match="fail_on_data_loss of the source flyball must be true or false, got 'no'"
    ):
        LogStreamReader({"url": "sqlite:///x.db", "log": "events", **COLUMNS, "failOnDataLoss": "no"})
