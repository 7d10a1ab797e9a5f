"""Random events for tests of steps and rules, as rows that the source would hand to Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from flyball.pipeline.sql.columns import END_MARK, EVENT, MALFORMED, MARK, Columns
from flyball.pipeline.tier2 import rules
from flyball.pipeline.tier2.rules.base import RuleBase
from flyball.pipeline.tier2.rules.gate import GateState

COLUMNS = Columns.parse("id bigint, host string null, kind string, ip string, load double null, event_time double")
START_S = 1_700_000_000.0

Event = dict[str, Any]


def random_events(
    seed: int, count: int, *, hosts: int = 5, span_s: float = 100.0, disorder_s: float = 0.0
) -> list[Event]:
    """Events in rough order of time, some twice, most of them of the first host; times are whole milliseconds."""
    rng = random.Random(seed)
    events = []
    for number in range(count):
        time = START_S + span_s * number / count - rng.uniform(0.0, disorder_s)
        event = {
            "id": number,
            "host": None if rng.random() < 0.02 else f"h{min(int(rng.expovariate(1.0)), hosts - 1)}",
            "kind": rng.choice(["dns", "performance", "login", "failed"]),
            "ip": f"{rng.choice([10, 92])}.126.{rng.randint(8, 12)}.{rng.randint(0, 255)}",
            "load": None if rng.random() < 0.05 else round(rng.gauss(1.5, 1.0), 3),
            "event_time": round(time, 3),
        }
        events += [event, dict(event)] if rng.random() < 0.05 else [event]
    return events


def rows(events: Sequence[Event], first: int = 0, seed: int = 0) -> list[Event]:
    """As the source hands them out: with their places, and a malformed row now and then."""
    rng = random.Random(seed)
    out: list[Event] = []
    for event in events:
        if rng.random() < 0.03:
            out.append({"_kind": MALFORMED, "_error": "not JSON", "_body": b"{"})
        out.append({"_kind": EVENT, **event})
    for place, row in enumerate(out, start=first):
        row["_partition"], row["_offset"] = place % 2, place
    return out


def mark(time_s: float) -> Event:
    """The one that ends the input."""
    return {"_kind": MARK, "event_time": time_s, "_partition": 0, "_offset": -1, "_body": END_MARK}


def frame(spark: SparkSession, data: Sequence[Event], columns: Columns = COLUMNS) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(data), schema=columns.row_schema()))


def run_rule(
    spark: SparkSession,
    folder: Path,
    rule: RuleBase,
    batches: Sequence[Sequence[Event]],
    watermark_s: float,
    columns: Columns = COLUMNS,
    marks_ahead_s: float | None = None,
) -> list[dict[str, Any]]:
    """What the rule finds in a stream of these micro-batches, in the order in which it is told."""
    rule.check(columns)
    folder.mkdir()
    for number, batch in enumerate(batches):
        path = folder / f"{number:04}.parquet"
        pq.write_table(pa.Table.from_pylist(list(batch), schema=columns.row_schema()), path)
        os.utime(path, (START_S + number, START_S + number))
    stream = spark.readStream.schema(columns.spark_ddl).option("maxFilesPerTrigger", 1).parquet(str(folder))
    ahead = rule.reach_s if marks_ahead_s is None else marks_ahead_s
    found = rules.alerts(stream, rule, columns, "event_time", watermark_s, ahead)
    state, alerts = GateState(), list[dict[str, Any]]()

    def take(batch_rows: DataFrame, batch: int) -> None:
        nonlocal state
        messages, state = rules.messages(rule, batch_rows.toArrow().to_pylist(), batch, state)
        # The state goes through the log after every batch.
        state = GateState.from_json(state.to_json())
        alerts.extend(messages)

    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    writer = found.writeStream.foreachBatch(take).outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder.with_name(f"{folder.name}-checkpoint"))).start()
    query.awaitTermination()
    return alerts
