"""The source alone in a Spark job that somebody has already, on streams and Kafka: killed, then restarted."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq

from flyball.brokers import Message, connect
from flyball.java import java_home
from flyball.servers.rabbitmq import RabbitMqNode

SEED = 23
EVENTS, PART, BATCH = 1200, 100, 200

# No session of ours and no pipeline: a plain job that reads two logs and writes Parquet.
JOB = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from flyball.pipeline.source.datasource import FlyballSource

folder, logs, batch = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
settings = {"ui.enabled": "false", "driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
spark.dataSource.register(FlyballSource)
queries = []
for name, (url, log) in logs.items():
    events = (
        spark.readStream.format("flyball")
        .option("url", url)
        .option("log", log)
        .option("columns", "id bigint, load double null, event_time double")
        .option("event_time", "event_time")
        .option("max_rows", batch)
        .load()
    )
    writer = events.writeStream.format("parquet").option("checkpointLocation", str(folder / name / "checkpoint"))
    queries.append(writer.start(str(folder / name / "out")))
for query in queries:
    query.processAllAvailable()
for name in logs:
    spark.read.parquet(str(folder / name / "out")).coalesce(1).write.parquet(str(folder / name / "all"))
spark.stop()
"""


def bodies(first: int, count: int) -> list[bytes]:
    rng = random.Random(SEED + first)
    made = []
    for number in range(first, first + count):
        event = {"id": number, "load": round(rng.random(), 3), "event_time": 1.7e9 + number}
        made.append(b"not JSON" if number % 97 == 0 else json.dumps(event).encode())
    return made


async def publish(url: str, log: str, events: list[bytes]) -> None:
    async with await connect(url) as broker:
        await broker.declare(log, "log", partitions=2)
        sender = await broker.sender(log)
        for result in await sender.send_batch([Message(body, key=body[-9:]) for body in events]):
            assert result.ok


def job(folder: Path, logs: dict[str, tuple[str, str]]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", JOB, str(folder), json.dumps(logs), str(BATCH)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def commits(folder: Path, name: str) -> int:
    done = folder / name / "checkpoint" / "commits"
    return sum(file.name.isdecimal() for file in done.iterdir()) if done.is_dir() else 0


def test_a_plain_job_reads_streams_and_kafka_exactly_once_also_when_it_was_killed(
    tmp_path: Path, rabbitmq: RabbitMqNode, kafka_url: str
) -> None:
    log = f"events-{uuid4().hex}"
    logs = {"stream": (rabbitmq.stream_url, log), "kafka": (kafka_url, log)}
    published = 0

    def more(count: int) -> None:
        nonlocal published
        for url, _ in logs.values():
            asyncio.run(publish(url, log, bodies(published, count)))
        published += count

    more(EVENTS)
    killed = job(tmp_path, logs)
    # However fast one of them is, neither may run out of work before both have done some.
    while killed.poll() is None and min(commits(tmp_path, name) for name in logs) < 2:
        if max(commits(tmp_path, name) for name in logs) >= published // BATCH - 2:
            more(PART)
        time.sleep(0.05)
    assert killed.poll() is None, (tmp_path / "job.log").read_text()[-2000:]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    reached = {name: commits(tmp_path, name) for name in logs}
    more(PART)
    again = job(tmp_path, logs)
    assert again.wait() == 0, (tmp_path / "job.log").read_text()[-2000:]
    wanted = [number for number in range(published) if number % 97]
    for name in logs:
        assert 2 <= reached[name] < commits(tmp_path, name), f"{name} was not killed in the middle"
        rows = pq.read_table(tmp_path / name / "all").to_pylist()
        assert sorted(row["id"] for row in rows if row["_kind"] == "event") == wanted, name
        bad = [row for row in rows if row["_kind"] == "malformed"]
        assert len(bad) == published - len(wanted)
        assert all("not JSON" in row["_error"] and row["_body"] == b"not JSON" for row in bad)
        places = {(row["_partition"], row["_offset"]) for row in rows}
        assert len(places) == len(rows) == published
        assert {partition for partition, _ in places} == {0, 1}
