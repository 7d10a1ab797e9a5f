"""`flyball run` with everything on RabbitMQ streams and on Kafka: input, result queues, results, alerts."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.demo import events as demo_events
from flyball.demo.config import FILTER_AND_RULE
from flyball.pipeline.logs import row_batch as entry
from flyball.servers.rabbitmq import RabbitMqNode
from tests.pipeline.reference import expected
from tests.pipeline.run.test_kill import bodies, run

SEED = 19
EVENTS = 6_000

CONFIG = (
    f"""
folder = "data"
broker = "{{url}}"

[source]
kind = "demo"
seed = {SEED}
events = {EVENTS}
per_second = 1200

[pipeline]
name = "{{name}}"
runner = "{{runner}}"
columns = "{demo_events.COLUMNS}"
event_time = "event_time"
lanes = {{{{ count = 2, timeout_s = 600 }}}}
"""
    + FILTER_AND_RULE
)


def line(folder: Path, url: str, runner: str) -> tuple[Path, str]:
    """A config, and the name of its pipeline: the brokers are shared with other tests."""
    name = f"line-{uuid4().hex[:8]}"
    config = folder / "line.toml"
    config.write_text(CONFIG.format(url=url, name=name, runner=runner))
    return config, name


def end_of(url: str, log: str) -> int:
    with open_log_reader(url, log) as reader:
        try:
            return reader.bounds(0)[1]
        except NoSuchChannel:
            return 0


def finish(config: Path, url: str, name: str) -> None:
    """Run it to its end, and compare with plain Python: counts, order, alerts."""
    again = run(config)
    answer, stderr = again.communicate()
    assert again.returncode == 0, stderr
    document = json.loads(answer)
    wanted = expected(demo_events.events(seed=SEED, count=EVENTS))
    for key in ("events_in", "results", "filtered", "dead_letter"):
        assert document[key] == getattr(wanted, key), (key, document)
    for key in ("lost", "duplicated", "disordered", "late", "waiting"):
        assert document[key] == 0, (key, document)
    alerts = [json.loads(body) for body in bodies(url, f"{name}.alerts")]
    assert sorted((alert["window_start"], alert["value"]) for alert in alerts) == sorted(wanted.alerts.items())
    found = [entry.decode(body) for body in bodies(url, f"{name}.results")]
    times = [row["event_time"] for one in found for row in entry.in_order(one).to_pylist()]
    assert times == sorted(times)
    assert len(times) == wanted.results


def test_lanes_of_one_application_on_streams(tmp_path: Path, rabbitmq: RabbitMqNode) -> None:
    url = rabbitmq.stream_url
    config, name = line(tmp_path, url, "inline")
    finish(config, url, name)


def test_lanes_as_processes_on_kafka_end_when_their_run_is_killed_and_go_on_with_it(
    tmp_path: Path, kafka_url: str
) -> None:
    config, name = line(tmp_path, kafka_url, "process")
    killed = run(config)
    while killed.poll() is None and end_of(kafka_url, f"{name}.results") < 2:
        time.sleep(0.05)
    records = (tmp_path / "data" / "processes").glob("*.json")
    workers = [int(json.loads(record.read_text())["pid"]) for record in records]
    killed.kill()  # it alone: the others have to see it
    _, stderr = killed.communicate()
    assert len(workers) == 5, stderr
    finish(config, kafka_url, name)
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
