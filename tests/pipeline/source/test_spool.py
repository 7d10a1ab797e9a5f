"""A plain RabbitMQ queue as input: nothing lost and nothing twice, whoever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flyball.app.config import RunConfig
from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError
from flyball.errors import InvalidValue
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.pipeline.source.spool import spooled
from tests.pipeline.run.test_kill import run as start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEED = 61
COLUMNS = {"columns": "id bigint, event_time double", "event_time": "event_time"}


def fill(url: str, queue: str, first: int, stop: int) -> None:
    async def send() -> None:
        async with await connect(url) as broker:
            await broker.declare(queue)
            sender = await broker.sender(queue)
            bodies = [
                json.dumps({"id": number, "event_time": 1.0 * number}).encode() for number in range(first, stop)
            ]
            for result in await sender.send_batch([Message(body) for body in bodies]):
                assert result.ok

    asyncio.run(send())


def left(url: str, queue: str) -> int:
    async def depth() -> int:
        async with await connect(url) as broker:
            return await broker.depth(queue)

    return asyncio.run(depth())


def spooled_ids(log_url: str, log: str) -> list[int]:
    try:
        with open_log_reader(log_url, log) as reader:
            bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    except BrokerError:
        return []
    return [json.loads(body)["id"] for body in bodies]


RUN = """
import asyncio, sys
from flyball.pipeline.source import spool
async def main():
    spool._WINDOW = 20  # many small batches, so that kills hit all places
    await spool.Spooler(*sys.argv[1:]).run(asyncio.Event())
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_kill_9_of_the_spooler_loses_and_repeats_nothing(amqp_url: str, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    queue, count = f"spool-{uuid.uuid4().hex}", 6000
    log_url = f"sqlite:///{tmp_path / 'spool.db'}"
    fill(amqp_url, queue, 0, count)
    killed = 0
    while len(spooled_ids(log_url, "events")) < count:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, amqp_url, queue, log_url, "events"], stderr=subprocess.PIPE
        )
        goal = min(count, len(spooled_ids(log_url, "events")) + rng.randint(1, 2500))
        while process.poll() is None and len(spooled_ids(log_url, "events")) < goal:
            time.sleep(0.005)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += 1
    assert killed >= 3, f"seed {SEED}"
    assert sorted(spooled_ids(log_url, "events")) == list(range(count))
    # What was killed before its acknowledgement comes again and is dropped.
    fill(amqp_url, queue, count, count + 1)
    process = subprocess.Popen([sys.executable, "-c", RUN, amqp_url, queue, log_url, "events"])
    while len(spooled_ids(log_url, "events")) < count + 1 or left(amqp_url, queue):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert sorted(spooled_ids(log_url, "events")) == list(range(count + 1))


def test_spark_reads_a_queue_through_its_spool(amqp_url: str, tmp_path: Path, spark: SparkSession) -> None:
    queue = f"spool-{uuid.uuid4().hex}"
    fill(amqp_url, queue, 0, 500)
    spool = f"sqlite:///{tmp_path / 'spool.db'}"
    by_batch: dict[int, list[int]] = {}  # a batch that was not noted as finished comes again

    def take(rows: DataFrame, batch: int) -> None:
        by_batch[batch] = [row["id"] for row in rows.toArrow().to_pylist()]

    for stop in (500, 800):
        fill(amqp_url, queue, 500, stop)
        stream = spark.readStream.format("flyball").options(url=_with(amqp_url, queue), spool=spool, **COLUMNS)
        writer = stream.load().writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            while sum(map(len, by_batch.values())) < stop:
                assert query.exception() is None, query.exception()
                time.sleep(0.05)
        finally:
            query.stop()
    assert sorted(id for ids in by_batch.values() for id in ids) == list(range(800))


LINE = """
folder = "data"

[source]
kind = "queue"
url = "{url}"
queue = "{queue}"

[pipeline]
columns = "id bigint, event_time double"
event_time = "event_time"
max_rows = 500

[[pipeline.tier1]]
keep = "id % 2 = 0"

[[pipeline.rules]]
name = "many"
aggregate = "count"
column = "id"
window_s = 100
above = 0
"""


def result_ids(log_url: str) -> list[int]:
    try:
        with open_log_reader(log_url, "results") as reader:
            bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    except BrokerError:
        return []
    return [row["id"] for body in bodies for row in entry.in_order(entry.decode(body)).to_pylist()]


def test_a_run_on_a_queue_is_killed_and_has_every_message_once(amqp_url: str, tmp_path: Path) -> None:
    queue, count = f"line-{uuid.uuid4().hex}", 6000
    config = tmp_path / "line.toml"
    config.write_text(LINE.format(url=amqp_url, queue=queue))
    log_url = f"sqlite:///{tmp_path / 'data' / 'broker.db'}"
    fill(amqp_url, queue, 0, count // 2)
    killed = start(config)
    while killed.poll() is None and not result_ids(log_url):
        time.sleep(0.02)
    fill(amqp_url, queue, count // 2, count // 2 + 500)  # so it has something to move when it is killed
    with suppress(ProcessLookupError):  # what it said is told below
        os.killpg(killed.pid, signal.SIGKILL)
    _, stderr = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, stderr
    assert len(result_ids(log_url)) < count // 2
    fill(amqp_url, queue, count // 2 + 500, count + 20)  # the last ones only carry event time on
    again = start(config)
    wanted = list(range(0, count, 2))
    while again.poll() is None and len(result_ids(log_url)) < len(wanted):
        time.sleep(0.05)
    again.terminate()
    answer, stderr = again.communicate()
    assert again.returncode == 0, stderr
    assert "continues here" in stderr
    assert result_ids(log_url)[: len(wanted)] == wanted
    document = json.loads(answer)
    assert (document["lost"], document["duplicated"], document["disordered"], document["late"]) == (0, 0, 0, 0)
    assert document["events_in"] == count + 20
    assert document["results"] + document["filtered"] + document["waiting"] == count + 20
    assert left(amqp_url, queue) == 0
    assert sorted(spooled_ids(log_url, "events")) == list(range(count + 20))


def _with(url: str, queue: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}queue={queue}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "amqp://localhost/?queue=x"}, "name one by the option 'spool', such as sqlite:////var"),
        ({"url": "amqp://localhost/", "spool": "sqlite:///s.db"}, "names no queue; add it"),
        ({"url": "amqp://localhost/?queue=x", "spool": "memory://"}, "has no logs; use one of sqlite"),
        ({"url": "sqlite:///x.db", "log": "x", "spool": "sqlite:///s.db"}, "is for queues"),
    ],
)
def test_a_wrong_spool_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        LogStreamReader({**COLUMNS, **options})


def test_executors_on_other_hosts_are_told_why_they_cannot_read(tmp_path: Path) -> None:
    options = {"url": "amqp://localhost/?queue=x&heartbeat_s=5", "spool": f"sqlite:///{tmp_path / 'absent.db'}"}
    given, spool = spooled(options)
    assert given == {"url": options["spool"], "log": "x"}
    assert spool is not None
    elsewhere: Any = pickle.loads(pickle.dumps(spool))
    with pytest.raises(InvalidValue, match=r"is a file of the host that reads the queue.*spool to kafka://"):
        elsewhere.check_here()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"url": "kafka://localhost", "queue": "x"}, r"kafka:// has no queues; use amqp://"),
        ({"url": "localhost", "queue": "x"}, "invalid broker URL"),
        ({"url": "amqp://localhost/"}, "queue"),
    ],
)
def test_a_wrong_queue_in_a_config_is_refused(source: dict[str, str], message: str) -> None:
    pipeline = {"columns": COLUMNS["columns"], "event_time": "event_time"}
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({"source": {"kind": "queue", **source}, "pipeline": pipeline})
