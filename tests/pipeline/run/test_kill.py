"""kill -9 of a whole pipeline at random points, again and again: in the end everything stands in the sink once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError
from flyball.demo import events as demo_events
from flyball.demo.config import FILTER_AND_RULE
from flyball.pipeline.logs import row_batch as entry
from tests.pipeline.reference import expected

EVENTS = 16_000
KILLS = 5
SEED = 17

CONFIG = f"""
folder = "data"

[source]
kind = "demo"
seed = {SEED}
events = {EVENTS}
per_second = 2000

[pipeline]
columns = "{demo_events.COLUMNS}"
event_time = "event_time"
lanes = {{ count = 3, queue_bytes = 400_000, free_bytes = 250_000, interval_s = 0.5 }}
{FILTER_AND_RULE}
[[pipeline.sinks]]
kind = "parquet"
of = "results"
path = "out/results"
every_s = 1

[[pipeline.sinks]]
kind = "jsonl"
of = "alerts"
path = "out/alerts.jsonl"

[[pipeline.sinks]]
kind = "sqlite"
of = "results"
path = "out/found.db"
"""


def run(config: Path) -> subprocess.Popen[str]:
    # Short lives: compiling thoroughly does not pay.
    environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return subprocess.Popen(
        [sys.executable, "-m", "flyball", "run", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def bodies(url: str, log: str) -> list[bytes]:
    with open_log_reader(url, log) as reader:
        return [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]


def written(url: str) -> int:
    """Entries in the results log so far."""
    try:
        with open_log_reader(url, "results") as reader:
            return reader.bounds(0)[1]
    except BrokerError:
        return 0


def test_killed_five_times_at_random_points_everything_is_there_exactly_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    config = tmp_path / "line.toml"
    config.write_text(CONFIG)
    url = f"sqlite:///{tmp_path / 'data' / 'broker.db'}"
    reached = []
    for _ in range(KILLS):
        killed = run(config)
        goal = written(url) + rng.randint(1, 3)
        while killed.poll() is None and written(url) < goal:
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.5))  # somewhere in the batch that is under way
        os.killpg(killed.pid, signal.SIGKILL)
        killed.communicate()
        reached.append(written(url))
    again = run(config)
    answer, stderr = again.communicate()
    assert again.returncode == 0, stderr
    assert 0 < reached[0] < reached[-1] < written(url), f"the kills were not in the middle: {reached}"
    document = json.loads(answer)
    wanted = expected(demo_events.events(seed=SEED, count=EVENTS))
    assert document["disordered"] == document["late"] == document["waiting"] == 0
    for name in ("lost", "duplicated"):
        assert document[name] == 0, (name, reached)
    for name in ("events_in", "results", "filtered", "dead_letter"):
        assert document[name] == getattr(wanted, name), (name, reached)
    alerts = [json.loads(body) for body in bodies(url, "alerts")]
    assert sorted((alert["window_start"], alert["value"]) for alert in alerts) == sorted(wanted.alerts.items())
    times = [
        row["event_time"]
        for body in bodies(url, "results")
        for row in entry.in_order(entry.decode(body)).to_pylist()
    ]
    assert times == sorted(times)
    out = tmp_path / "out"
    assert [json.loads(line) for line in (out / "alerts.jsonl").read_text().splitlines()] == alerts
    files = [pq.read_table(path) for path in sorted((out / "results").glob("*.parquet"))]
    assert [row["event_time"] for table in files for row in table.to_pylist()] == times
    with closing(sqlite3.connect(out / "found.db")) as database:
        assert [row[0] for row in database.execute("SELECT event_time FROM results ORDER BY rowid")] == times
