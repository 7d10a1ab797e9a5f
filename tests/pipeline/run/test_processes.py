"""Lanes as Spark applications of their own: killed one by one and all together, added, removed; exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from flyball import Pipeline
from flyball.demo import events as demo_events
from flyball.errors import InvalidValue
from flyball.pipeline.audit import audit
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.processes import ProcessPipeline
from flyball.pipeline.split.ticks import Tick, ticks_name
from tests.pipeline.reference import Expected, expected
from tests.pipeline.run.test_inline import publish
from tests.pipeline.run.test_kill import bodies, written

SEED = 41
EVENTS = 6_000

LANES = {"count": 2, "queue_bytes": 400_000, "free_bytes": 250_000, "interval_s": 0.5, "timeout_s": 600.0}
TIER1 = [{"keep": "NOT (kind = 'performance' AND in_subnet(ip, '92.126.10.0/24'))"}]
RULE = {
    "name": "busy-hosts",
    "where": "kind = 'performance' AND in_subnet(ip, '92.126.11.0/24')",
    "column": "load",
    "above": 2,
}


def config(**changes: Any) -> PipelineConfig:
    made = {
        "columns": demo_events.COLUMNS,
        "event_time": "event_time",
        "runner": "process",
        "lanes": LANES,
        "tier1": TIER1,
        "rules": [RULE],
    }
    return PipelineConfig.model_validate(made | changes)


def matches(url: str, wanted: Expected) -> None:
    """Alerts and the order of results are those of the reference."""
    alerts = [json.loads(body) for body in bodies(url, "alerts")]
    assert sorted((alert["window_start"], alert["value"]) for alert in alerts) == sorted(wanted.alerts.items())
    rows = [row for body in bodies(url, "results") for row in entry.in_order(entry.decode(body)).to_pylist()]
    times = [row["event_time"] for row in rows]
    assert times == sorted(times)
    assert len(rows) == wanted.results


def ticks(url: str) -> list[Tick]:
    return [Tick.from_json(body) for body in bodies(url, ticks_name("results"))]


def test_whoever_is_killed_and_however_many_lanes_there_are_everything_is_there_once(tmp_path: Path) -> None:
    rng, settings = random.Random(SEED), config()
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    events = list(demo_events.events(seed=SEED, count=EVENTS))
    raised: list[dict[str, Any]] = []
    pipeline = Pipeline(url, settings, tmp_path, raised.append)
    with pipeline:
        assert set(pipeline.pids()) == {"splitter", "lane-0", "lane-1", "combiner", "rules"}
        # Those that are Spark applications take long to come back: two of them at a time, a moment apart.
        victims = [["combiner"], ["splitter"], ["lane-0", "rules"], ["lane-1"]]
        rng.shuffle(victims)
        parts = [events[first : first + 600] for first in range(0, EVENTS, 600)]
        for names, part in zip(victims, parts, strict=False):
            reached = written(url)
            publish(url, part)
            while written(url) == reached:  # it is in the middle of the work that this part makes
                pipeline.check()
                time.sleep(0.02)
            for name in names:
                time.sleep(rng.uniform(0.0, 0.3))
                os.kill(pipeline.pids()[name], signal.SIGKILL)
        publish(url, [*parts[4], *parts[5]])
        pipeline.set_lanes(3)
        publish(url, [*parts[6], *parts[7]])
        pipeline.set_lanes(1)
        publish(url, [*parts[8], *parts[9], END_OF_INPUT])
        pipeline.drain()
        assert set(pipeline.pids()) == {"splitter", "lane-0", "combiner", "rules"}
        killed = {name for names in victims for name in names} - {"lane-1"}  # which has left, and is not counted
        assert all(pipeline.restarts()[name] >= 1 for name in killed)
    found = audit(url, settings, pipeline.totals)
    wanted = expected(events)
    assert (found.lost, found.duplicated, found.disordered, found.late, found.waiting) == (0, 0, 0, 0, 0)
    for name in ("events_in", "results", "filtered", "dead_letter"):
        assert getattr(found, name) == getattr(wanted, name), f"{name}, seed {SEED}"
    matches(url, wanted)
    # An alert whose process was killed right after may be told once only by the log.
    assert {alert["window_start"] for alert in raised} == set(wanted.alerts)
    assert {len(tick.members) for tick in ticks(url)} == {1, 2, 3}
    assert pipeline.pids() == {}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    other = subprocess.Popen(["flock", str(tmp_path / "lock"), "sleep", "600"])
    try:
        while not (tmp_path / "lock").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        with pytest.raises(InvalidValue, match="in use by a pipeline that runs"):
            ProcessPipeline(url, config(), tmp_path).start()
    finally:
        other.kill()
        other.wait()


def test_lanes_of_their_own_are_the_default_on_a_cluster() -> None:
    cluster = {"master": "spark://10.1.2.3:7077", "runner": None}
    assert config(**cluster).chosen_runner == "process"
    assert config(runner=None).chosen_runner == "inline"


def test_an_embedded_broker_is_refused_on_several_hosts(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="use kafka:// or rabbitmq-stream://"):
        ProcessPipeline(f"sqlite:///{tmp_path / 'broker.db'}", config(master="spark://10.1.2.3:7077"), tmp_path)
