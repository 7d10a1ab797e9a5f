"""The whole pipeline, from generated events to alerts, against a plain-Python reference; also after kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from flyball.app.run import Outcome
from flyball.brokers.log_reader import open_log_reader
from flyball.cli.run import refuse_loss
from flyball.demo import events as demo_events
from flyball.pipeline.audit import Audit
from tests.pipeline.reference import Expected, expected

EVENTS = 12_000

CONFIG = f"""
folder = "data"

[source]
kind = "demo"
seed = 5
events = {EVENTS}
per_second = 1500

[pipeline]
columns = "{demo_events.COLUMNS}"
event_time = "event_time"

[[pipeline.tier1]]
keep = "NOT (kind = 'performance' AND ip LIKE '92.126.10.%')"

[[pipeline.rules]]
name = "busy-hosts"
where = "kind = 'performance' AND ip LIKE '92.126.11.%'"
column = "load"
above = 2
"""


def flyball(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flyball", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def counts(reference: Expected) -> dict[str, int]:
    return {
        "events_in": reference.events_in,
        "results": reference.results,
        "filtered": reference.filtered,
        "dead_letter": reference.dead_letter,
        "lost": 0,
        "duplicated": 0,
        "alerts": len(reference.alerts),
    }


def demo_events_that_parse(seed: int, count: int) -> Iterator[dict[str, Any]]:
    for body in demo_events.events(seed=seed, count=count):
        with contextlib.suppress(ValueError):
            yield json.loads(body)


def written_alerts(database: Path) -> list[tuple[float, float]]:
    with open_log_reader(f"sqlite:///{database}", "alerts") as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return sorted((alert["window_start"], alert["value"]) for alert in map(json.loads, bodies))


def test_demo_counts_equal_the_reference() -> None:
    run = flyball("demo", "--events", "3000", "--seed", "7", "--json")
    answer, notes = run.communicate()
    assert run.returncode == 0, notes
    document = json.loads(answer)
    reference = expected(demo_events.events(seed=7, count=3000))
    assert reference.dead_letter > 0
    assert reference.alerts
    assert {name: document[name] for name in counts(reference)} == counts(reference)
    assert "ALERT busy-hosts" in notes
    loads = sorted(
        fields["load"] for fields in demo_events_that_parse(seed=7, count=3000) if fields["kind"] == "performance"
    )
    unusual = document["thresholds"]["high_load"]
    assert unusual != 2.0  # the value that it starts with
    share_above = sum(load > unusual for load in loads) / len(loads)
    assert 0.02 < share_above < 0.1  # of a sample of recent events; 0.05 is what was asked for
    consumer = document["consumer"]
    assert 0 < consumer["handled"] <= document["events_in"] + 1  # with the mark that ends the input
    assert [phase["goal_per_s"] for phase in consumer["phases"]] == [200.0, 500.0]
    assert "to take 500 a second" in notes  # the goal changed while it ran


def test_killed_in_the_middle_and_started_again_ends_with_the_same_counts_and_alerts(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    killed = flyball("run", config, "--json")
    assert killed.stderr is not None
    for line in killed.stderr:  # the first alert shows that all parts are at work, in the middle of the input
        if "ALERT" in line:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = flyball("run", config, "--json")
    answer, notes = again.communicate()
    assert again.returncode == 0, notes
    reference = expected(demo_events.events(seed=5, count=EVENTS))
    document = json.loads(answer)
    assert {name: document[name] for name in counts(reference)} == counts(reference)
    assert written_alerts(tmp_path / "data" / "broker.db") == sorted(reference.alerts.items())


def test_a_signal_stops_it_and_a_second_run_finishes(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    stopped = flyball("run", config, "--json")
    assert stopped.stderr is not None
    for line in stopped.stderr:
        if "through tier 1" in line:
            break
    stopped.send_signal(signal.SIGTERM)
    answer, notes = stopped.communicate()
    assert stopped.returncode == 0, notes
    document = json.loads(answer)
    assert document["lost"] == document["duplicated"] == 0
    assert "continues here" in notes
    again = flyball("run", config, "--json")
    answer, notes = again.communicate()
    assert again.returncode == 0, notes
    reference = expected(demo_events.events(seed=5, count=EVENTS))
    assert {name: json.loads(answer)[name] for name in counts(reference)} == counts(reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[source]", "[source]\nrate = 5"), "rate"),
        (("[source]", "[sauce]"), "there is no key sauce"),
        (('kind = "demo"', 'kind = "tap"'), "tap"),
        (('column = "load"', 'column = "lead"'), "'lead', which is none of id, kind, ip"),
        (("above = 2", "above = 2\nbelow = 1"), "either above or below"),
        (("id bigint", "id decimal"), "unknown type 'decimal'"),
    ],
)
def test_a_wrong_config_is_one_sentence(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.replace(*change))
    run = flyball("run", config)
    _, notes = run.communicate()
    assert run.returncode == 2
    assert message in notes
    assert "Traceback" not in notes
    assert len(notes.strip().splitlines()) == 1
    assert not (tmp_path / "data").exists()


def outcome_with(lost: int) -> Outcome:
    counts = Audit(
        events_in=60_000,
        results=54_000 - lost,
        late=0,
        filtered=5_000,
        dead_letter=1_000,
        waiting=0,
        lost=lost,
        duplicated=0,
        disordered=0,
        alerts=7,
    )
    return Outcome(counts, seconds=9.0, first_alert_s=1.0, loops=2, finished=True, publisher=None)


def test_lost_events_are_exit_code_1_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end:
        refuse_loss(outcome_with(lost=5_308))
    assert end.value.exit_code == 1
    assert capsys.readouterr().err.startswith("5308 of 60000 events were lost")


def test_a_run_that_lost_nothing_ends_normally(capsys: pytest.CaptureFixture[str]) -> None:
    refuse_loss(outcome_with(lost=0))
    assert capsys.readouterr().err == ""
