"""A Spark job of your own that reads a log of a broker: the source "flyball", and nothing else of Flyball.

Here the log is a file; a real job gives the URL of its RabbitMQ streams or Kafka instead. Bodies are parsed while
they are read. What is no event comes out too, with the reason, so that the job decides what becomes of it.
"""

# ruff: noqa: T201 – an example prints

import asyncio
import json
import tempfile
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from flyball import Message, connect
from flyball.pipeline.run.session import spark_session


async def publish(url: str) -> None:
    async with await connect(url) as broker:
        await broker.declare("events", "log")
        events = [{"host": f"h{number % 3}", "load": number / 10, "time": float(number)} for number in range(300)]
        bodies = [*(json.dumps(event).encode() for event in events), b"not an event"]
        await (await broker.sender("events")).send_batch([Message(body) for body in bodies])


def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'broker.db'}"
    asyncio.run(publish(url))
    # Any session will do that has the source:
    # spark.dataSource.register(flyball.pipeline.source.datasource.FlyballSource)
    spark = spark_session("example", workdir=folder)
    events = (
        spark.readStream.format("flyball")
        .option("url", url)
        .option("log", "events")
        .option("columns", "host string, load double, time double")
        .option("event_time", "time")
        .load()
    )
    query = events.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    running = query.start(str(folder / "out"))
    running.processAllAvailable()
    running.stop()
    rows = spark.read.parquet(str(folder / "out"))
    busy = rows.where("_kind = 'event'").groupBy("host").agg(F.max("load").alias("load")).orderBy("host")
    for row in busy.collect():
        print(row["host"], row["load"])
    for row in rows.where("_kind = 'malformed'").collect():
        print("not an event:", row["_error"].split(":")[0])
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
