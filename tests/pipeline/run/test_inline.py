"""Tier 1 in lanes and the combiner on Spark: random events, lanes that come and go, small result queues."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.errors import InvalidValue
from flyball.pipeline.audit import audit
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import QueueLevels
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.inline import InlinePipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id bigint, load double, event_time double"
WATERMARK_S = 5.0


def config(**lanes: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "columns": COLUMNS,
            "event_time": "event_time",
            "watermark_s": WATERMARK_S,
            "lanes": lanes,
            "tier1": [{"keep": "load > 0.5"}],
        }
    )


def random_bodies(rng: random.Random, first: int, count: int) -> list[bytes]:
    """In disorder within the watermark; duplicates and malformed ones among them."""
    bodies: list[bytes] = []
    for number in range(first, first + count):
        time_s = round(1000 + number / 50 - rng.uniform(0, WATERMARK_S - 1), 2)
        body = json.dumps({"id": number, "load": round(rng.random(), 3), "event_time": time_s}).encode()
        kind = rng.random()
        bodies.append(bodies[-1] if kind < 0.05 and bodies else body[:-4] if kind < 0.1 else body)
    return bodies


def publish(url: str, bodies: list[bytes], log: str = "events") -> None:
    async def send() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log)
            for result in await sender.send_batch([Message(body) for body in bodies]):
                assert result.ok

    asyncio.run(send())


def results(url: str) -> list[tuple[float, int, int]]:
    with open_log_reader(url, "results") as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    rows = [row for body in bodies for row in entry.in_order(entry.decode(body)).to_pylist()]
    return [(row["event_time"], row["_offset"], row["id"]) for row in rows]


def expected(bodies: list[bytes]) -> list[tuple[float, int, int]]:
    kept = []
    for offset, body in enumerate(bodies):
        try:
            event = json.loads(body)
        except ValueError:
            continue
        if event["load"] > 0.5:
            kept.append((event["event_time"], offset, event["id"]))
    return sorted(kept)


def members(url: str) -> list[list[int]]:
    """Which lanes the batches had, one after the other."""
    with open_log_reader(url, "results.lane-0") as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return [entry.header_of(body)["members"] for body in bodies]


def test_results_stand_in_event_time_order_while_lanes_come_and_go(spark: SparkSession, tmp_path: Path) -> None:
    seed = 11
    rng = random.Random(seed)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    settings = config(count=2)
    pipeline = InlinePipeline(url, settings, tmp_path, spark=spark)
    bodies: list[bytes] = []
    pipeline.start()
    try:
        for lanes in (2, 3, 1, 4):
            pipeline.set_lanes(lanes)
            before = len(members(url)) if bodies else 0
            while len(bodies) == 0 or members(url)[before:][-1:] != [list(range(lanes))]:
                part = random_bodies(rng, len(bodies), 400)
                publish(url, part)
                bodies += part
                pipeline.drain()
        publish(url, [END_OF_INPUT])
        pipeline.drain()
    finally:
        pipeline.stop()
    assert [len(lanes) for lanes in members(url)][-1] == 4
    assert results(url) == expected(bodies), f"seed {seed}"
    found = audit(url, settings, pipeline.totals)
    assert (found.lost, found.duplicated, found.disordered, found.late, found.waiting) == (0, 0, 0, 0, 0)
    assert found.results + found.filtered + found.dead_letter == len(bodies)
    assert found.dead_letter > 0


def test_small_result_queues_make_input_wait_and_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    settings = config(count=2, queue_bytes=60_000, free_bytes=30_000, interval_s=0.2)
    bodies = random_bodies(random.Random(3), 0, 6000)
    publish(url, [*bodies, END_OF_INPUT])
    pipeline = InlinePipeline(url, settings, tmp_path, spark=spark)
    pipeline.start()
    try:
        pipeline.drain()
    finally:
        pipeline.stop()
    assert results(url) == expected(bodies)
    assert len(members(url)) > 5  # the backlog did not come in at once
    levels = QueueLevels(url, "results").read([0, 1])
    assert all(level.queued_bytes == 0 for level in levels)
    assert sum(level.events for level in levels) == len(bodies)
    with sqlite3.connect(tmp_path / "loops.db") as file:
        loops = {name for (name,) in file.execute("SELECT DISTINCT loop FROM receipts")}
    assert {"lane-0 flow", "lane-1 flow"} <= loops


def test_a_wrong_number_of_lanes_is_refused(tmp_path: Path) -> None:
    pipeline = InlinePipeline(f"sqlite:///{tmp_path / 'broker.db'}", config(count=2), tmp_path)
    with pytest.raises(InvalidValue, match="between 1 and 64, got 0"):
        pipeline.set_lanes(0)


def test_an_embedded_broker_is_refused_where_executors_could_be_elsewhere(tmp_path: Path) -> None:
    elsewhere = config(count=2).model_copy(update={"master": "spark://10.1.2.3:7077"})
    with pytest.raises(InvalidValue, match=r"use kafka:// or rabbitmq-stream://"):
        InlinePipeline(f"sqlite:///{tmp_path / 'broker.db'}", elsewhere, tmp_path)
