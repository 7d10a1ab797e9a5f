"""kill -9 of the whole Spark application at random points, again and again: the sink's log has every row once.

The plan has a shuffle, so the rows of a repeated batch come in another order than before.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.java import java_home

EVENTS, BATCH = 40_000, 4_000
KILLS = 3
SEED = 31

JOB = """
import sys
from pyspark.sql import SparkSession
from flyball.pipeline.source.datasource import FlyballSource

url, folder, batch = sys.argv[1:]
settings = {"ui.enabled": "false", "driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.config("spark.sql.shuffle.partitions", "3").getOrCreate()
spark.dataSource.register(FlyballSource)
events = (
    spark.readStream.format("flyball")
    .options(url=url, log="events", columns="id bigint, host string, time double", event_time="time")
    .option("max_rows", batch)
    .load()
)
(
    events.where("_kind = 'event'").repartition(3, "host")
    .selectExpr("host AS key", "cast(id AS string) AS value")
    .writeStream.format("flyball")
    .options(url=url, channel="out", checkpointLocation=folder + "/checkpoint")
    .trigger(availableNow=True).start().awaitTermination()
)
"""


async def publish(url: str) -> None:
    rng = random.Random(SEED)
    async with await connect(url) as broker:
        await broker.declare("events", "log", partitions=2)
        await broker.declare("out", "log", partitions=2)
        sender = await broker.sender("events")
        events = [{"id": n, "host": f"h{rng.randrange(50)}", "time": 1.7e9 + n} for n in range(EVENTS)]
        await sender.send_batch(
            [Message(json.dumps(event).encode(), key=str(event["id"]).encode()) for event in events]
        )


def written(url: str) -> list[int]:
    with open_log_reader(url, "out") as reader:
        return [
            int(body)
            for partition in range(2)
            for chunk in reader.read_bodies(partition, 0, reader.bounds(partition)[1])
            for body in chunk.bodies
        ]


def rows_stored(url: str) -> int:
    with open_log_reader(url, "out") as reader:
        return sum(reader.bounds(partition)[1] for partition in range(2))


def in_committed_batches(folder: Path) -> int:
    """Events in the batches that Spark saw finished."""
    done = folder / "checkpoint" / "commits"
    last = max((int(file.name) for file in done.glob("[0-9]*")), default=None) if done.is_dir() else None
    if last is None:
        return 0
    offset = json.loads((folder / "checkpoint" / "offsets" / str(last)).read_text().splitlines()[2])
    return sum(offset["next"])


def start(url: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", JOB, url, str(folder), str(BATCH)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def test_every_row_stands_in_the_log_once_however_often_the_job_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    asyncio.run(publish(url))
    rng = random.Random(SEED)
    within_a_batch = 0
    for number in range(KILLS):
        goal = EVENTS * number // (KILLS + 1) + rng.randrange(1, BATCH)
        job = start(url, tmp_path)
        while job.poll() is None and rows_stored(url) < goal:
            time.sleep(0.002)
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-2000:]
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        stored = rows_stored(url)
        assert stored < EVENTS, "there was nothing left to repeat"
        within_a_batch += stored > in_committed_batches(tmp_path)
    assert within_a_batch > 0, "no kill hit a batch that was written in part"
    job = start(url, tmp_path)
    assert job.wait() == 0, (tmp_path / "job.log").read_text()[-2000:]
    assert Counter(written(url)) == Counter(range(EVENTS))
