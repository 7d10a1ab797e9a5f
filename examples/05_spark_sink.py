"""A Spark job of your own that reads a log and writes to another one: the source and the sink "flyball".

Here both are in one file; a real job gives the URLs of its RabbitMQ or Kafka instead. The job may be killed at any
time: started again with the same checkpoint it continues, and the log of alerts has every alert once.
"""

# ruff: noqa: T201 – an example prints

import asyncio
import json
import tempfile
from pathlib import Path

from flyball import Message, connect
from flyball.pipeline.run.session import spark_session


async def publish(url: str) -> None:
    async with await connect(url) as broker:
        await broker.declare("events", "log")
        events = [{"host": f"h{number % 3}", "load": number / 100, "time": float(number)} for number in range(300)]
        sender = await broker.sender("events")
        await sender.send_batch([Message(json.dumps(event).encode()) for event in events])


def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'broker.db'}"
    asyncio.run(publish(url))
    # Any session will do that has the data source:
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
    alerts = (
        events.where("_kind = 'event' AND load > 2.95")
        .selectExpr("host AS key", "to_json(struct(host, load)) AS value", "timestamp_seconds(time) AS timestamp")
        .writeStream.format("flyball")
        .option("url", url)
        .option("channel", "alerts")
        .option("declare", "log")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    for _ in range(2):  # the second time there is nothing left to do
        alerts.start().awaitTermination()
    stored = spark.read.format("flyball").option("url", url).option("log", "alerts").option("format", "raw").load()
    for row in stored.orderBy("_offset").collect():
        print(row["_offset"], row["_body"].decode())
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
