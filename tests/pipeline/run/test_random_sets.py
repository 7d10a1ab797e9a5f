"""Random event sets through the whole pipeline against plain Python: results, order, alerts, late, dead letters.

Events come in disorder, some too late; some twice; some malformed; and the lanes are skewed: the first lane of
each batch keeps almost nothing and is early, the last keeps almost everything and is behind.

Where lanes are applications of their own, nobody knows beforehand which events share a batch: there the watermark
is longer than any event is late, so that the results are the same whatever the batches are.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.audit import audit
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.run.processes import ProcessPipeline
from tests.pipeline.run.test_inline import publish, results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 300  # the source never takes more, and less only at the end: plain Python knows the batches
LANES = 3
WATERMARK_S = 2.0
WINDOW_S = 5

CONFIG = PipelineConfig.model_validate(
    {
        "columns": "id bigint, host string, load double, event_time double",
        "event_time": "event_time",
        "watermark_s": WATERMARK_S,
        "max_rows": BATCH,
        "lanes": {"count": LANES},
        "tier1": [{"keep": "load > 0.5"}],
        "rules": [
            {"name": "many", "aggregate": "count", "column": "id", "window_s": WINDOW_S, "above": 4}
            | {"group_by": ["host"]},
            {"name": "top", "aggregate": "max", "column": "load", "window_s": WINDOW_S, "above": 0.99},
        ],
    }
)

LONGEST_LATE_S = 60.0

Key = tuple[float, int, int]
"""(event time, offset, id)"""


def random_bodies(seed: int, count: int) -> list[bytes]:
    rng = random.Random(seed)
    bodies: list[bytes] = []
    for number in range(count):
        place = number % BATCH / BATCH  # first lane … last lane
        late_s = rng.expovariate(1.5) * (1 + place) if rng.random() < 0.9 else rng.uniform(0, 8)
        event = {
            "id": number,
            "host": f"h{min(int(rng.expovariate(0.8)), 4)}",
            "load": round(min(1.0, rng.uniform(0.0, 0.53) + place * 0.55), 3),
            "event_time": round(1000 + number / 40 - late_s, 2),
        }
        body = json.dumps(event).encode()
        chance = rng.random()
        if chance < 0.04 and bodies:
            body = rng.choice(bodies[-20:])  # a duplicate, maybe of a malformed one
        elif chance < 0.08:
            body = rng.choice([body[:-3], b"null", b"", b"{}", json.dumps({**event, "load": "high"}).encode()])
        bodies.append(body)
    return bodies


@dataclass
class Reference:
    ordered: list[Key] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    alerts: dict[tuple[str, float, str | None], float] = field(default_factory=dict)


def reference(bodies: list[bytes], watermark_s: float = WATERMARK_S) -> Reference:
    found = Reference()
    events = {offset: event for offset, body in enumerate(bodies) if (event := _event(body)) is not None}
    found.dead = [offset for offset in range(len(bodies)) if offset not in events]
    held: list[Key] = []
    gone, latest_s = (-math.inf, -1, -1), -math.inf
    for first in range(0, len(bodies), BATCH):
        for offset in range(first, min(first + BATCH, len(bodies))):
            event = events.get(offset)
            if event is None:
                continue
            latest_s = max(latest_s, event["event_time"])
            key = (event["event_time"], offset, event["id"])
            if event["load"] > 0.5:
                (found.late.append(offset) if key <= gone else held.append(key))
        ready = sorted(key for key in held if key[0] <= latest_s - watermark_s)
        held = [key for key in held if key[0] > latest_s - watermark_s]
        found.ordered += ready
        # Rules have been told that this time is over, so what is older cannot be judged any more.
        gone = max([gone, *ready, (latest_s - watermark_s, -1, -1)])
    found.ordered += sorted(held)
    counts: dict[tuple[float, str], int] = defaultdict(int)
    tops: dict[float, float] = defaultdict(float)
    for time_s, offset, _ in found.ordered:
        start_s = math.floor(time_s / WINDOW_S) * float(WINDOW_S)
        counts[start_s, events[offset]["host"]] += 1
        tops[start_s] = max(tops[start_s], events[offset]["load"])
    found.alerts = {("many", start, host): float(n) for (start, host), n in counts.items() if n > 4}
    found.alerts |= {("top", start, None): load for start, load in tops.items() if load > 0.99}
    return found


def _event(body: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(body)
    except ValueError:
        return None
    fits = isinstance(event, dict) and isinstance(event.get("load"), float | int) and "event_time" in event
    return event if fits else None


def documents(url: str, log: str) -> list[dict[str, Any]]:
    with open_log_reader(url, log) as reader:
        return [json.loads(body) for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]


@pytest.mark.parametrize("seed", [71, 72])
def test_random_events_give_what_plain_python_gives(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(seed, 1800)
    publish(url, [*bodies, END_OF_INPUT])
    pipeline = InlinePipeline(url, CONFIG, tmp_path, spark=spark)
    pipeline.start()
    try:
        pipeline.drain()
    finally:
        pipeline.stop()
    wanted = reference(bodies)
    assert len(wanted.late) > 5
    agrees(url, bodies, wanted)
    found = audit(url, CONFIG, pipeline.totals)
    assert (found.lost, found.duplicated, found.disordered, found.waiting) == (0, 0, 0, 0)
    by_lane = [entries_of(url, lane) for lane in range(LANES)]
    # How far the lanes differ depends on how the batches fell, and so on the time.
    assert by_lane[0] < by_lane[-1]


def test_random_events_give_the_same_where_lanes_are_applications(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(73, 1800)
    changes = {"runner": "process", "watermark_s": LONGEST_LATE_S, "lanes": {"count": 2}}
    config = CONFIG.model_validate(CONFIG.model_dump(exclude_none=True) | changes)
    pipeline = ProcessPipeline(url, config, tmp_path)
    publish(url, bodies[:900])
    pipeline.start()
    try:
        pipeline.drain()
        publish(url, [*bodies[900:], END_OF_INPUT])
        pipeline.drain()
    finally:
        pipeline.stop()
    wanted = reference(bodies, LONGEST_LATE_S)
    assert not wanted.late
    agrees(url, bodies, wanted)
    assert all(entries_of(url, lane) for lane in range(2))


def agrees(url: str, bodies: list[bytes], wanted: Reference) -> None:
    """Everything is where plain Python says, and the set has what its name says."""
    assert results(url) == wanted.ordered
    assert sorted(one["_offset"] for one in documents(url, "late")) == sorted(wanted.late)
    assert sorted(one["_offset"] for one in documents(url, "dead-letter")) == wanted.dead
    raised = {
        (one["rule"], one["window_start"], one.get("host")): one["value"] for one in documents(url, "alerts")
    }
    assert raised == wanted.alerts
    assert len(documents(url, "alerts")) == len(raised)
    assert len(wanted.dead) > 50
    assert len(wanted.alerts) > 10
    assert len(bodies) - len(set(bodies)) > 50


def entries_of(url: str, lane: int) -> int:
    """Results that a lane made."""
    with open_log_reader(url, f"results.lane-{lane}") as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return sum(entry.decode(body).rows.num_rows for body in bodies)
