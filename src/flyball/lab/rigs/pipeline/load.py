"""The load of all cases: JSON events of 200 bytes, a lookup table, and a filter that half of them pass."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers import Message, connect
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.marks import END_OF_INPUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "id bigint, kind string, ip string, load double, mem bigint, event_time double, msg string"
THRESHOLD = 0.5
FILTER = f"load > {THRESHOLD}"
BODY_BYTES = 200
INPUT = "events"
_BATCH = 4096
_PER_SECOND = 20_000
_DISORDER_S = 0.05
_REPEATED = 300


def bodies(count: int, seed: int, first: int = 0) -> Iterator[bytes]:
    """Generate events, roughly in order of time."""
    rng = random.Random(seed)
    for number in range(first, first + count):
        text = (
            f'{{"id":{number},"kind":"performance","ip":"92.126.{rng.randint(8, 15)}.{rng.randint(1, 254)}",'
            f'"load":{rng.random():.3f},"mem":{rng.randint(0, 1 << 30)},'
            f'"event_time":{1.7e9 + number / _PER_SECOND - rng.random() * _DISORDER_S:.3f},"msg":"'
        )
        yield (text + "x" * (BODY_BYTES - 2 - len(text)) + '"}').encode()


def passes(body: bytes) -> bool:
    """Whether an event passes the pipeline's filter."""
    return float(json.loads(body)["load"]) > THRESHOLD


def hash_messages(rows: DataFrame) -> DataFrame:
    """A tier-1 step that costs some 40 µs of a core: hash each event's message many times over."""
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    digest = F.sha2(F.repeat(F.col("msg"), _REPEATED), 512)
    return rows.withColumn("msg", F.when(F.col("_kind") == "event", digest).otherwise(F.col("msg")))


def fill(url: str, events: Iterable[bytes], log: str = INPUT, *, ends: bool = True) -> None:
    """Send all events to a log, and then the end of the input."""

    async def send() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            sender = await broker.sender(log)
            left = iter(events)
            while batch := [Message(body) for body in islice(left, _BATCH)]:
                await sender.send_batch(batch)
            if ends:
                await sender.send_batch([Message(END_OF_INPUT)])

    asyncio.run(send())


def write_hosts(path: Path) -> None:
    """Write the lookup table: a name and a type for each address."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["address", "host", "type"])
        for third in range(8, 16):
            for fourth in range(1, 255):
                address = f"92.126.{third}.{fourth}"
                writer.writerow([address, f"host-{third}-{fourth}", "prod" if fourth % 2 else "test"])


def config(
    hosts: Path, *, name: str = "results", rules: bool = True, heavy: bool = False, **more: Any
) -> PipelineConfig:
    """Configure a filter, a lookup and one rule; logs are named after `name`, so that runs can share a broker.

    `heavy`: hash the messages first.
    """
    return PipelineConfig.model_validate(
        {
            "columns": COLUMNS,
            "event_time": "event_time",
            "watermark_s": 1.0,
            "input": INPUT,
            "results": name,
            "dead_letter": f"{name}-dead",
            "alerts": f"{name}-alerts",
            "late": f"{name}-late",
            "tier1": [
                *([{"call": f"{__name__}:{hash_messages.__name__}"}] if heavy else []),
                {"keep": FILTER},
                {"lookup": str(hosts), "on": "ip", "key": "address", "add": "host string, type string"},
            ],
            "rules": [
                {
                    "name": f"{name}-busy",
                    "where": "in_subnet(ip, '92.126.11.0/24')",
                    "column": "load",
                    "above": 0.9985,
                    "window_s": 10,
                }
            ]
            if rules
            else [],
            **more,
        }
    )
