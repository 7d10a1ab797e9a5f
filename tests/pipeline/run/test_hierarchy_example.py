"""The example of cities that feed a country, run as its comment says; a city and the country die by kill -9."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError
from flyball.demo import events as demo_events
from flyball.pipeline.logs.marks import is_mark
from tests.pipeline.run.test_kill import run

EXAMPLE = Path(__file__).parents[3] / "examples" / "hierarchy"
SEEDS = {"lyon": 5, "paris": 6}


def documents(url: str, log: str) -> list[dict[str, Any]]:
    try:
        with open_log_reader(url, log) as reader:
            bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    except BrokerError:
        return []
    return [json.loads(body) for body in bodies if not is_mark(body)]


def reference() -> tuple[dict[tuple[str, float], tuple[float, int]], dict[float, float]]:
    """(each city's summaries by the end of their window; the country's alerts by the start of theirs)."""
    loads: dict[tuple[str, float], list[float]] = defaultdict(list)
    for city, seed in SEEDS.items():
        for body in demo_events.events(seed, count=6000):
            try:
                event = json.loads(body)
                of_interest = event["kind"] == "performance" and event["ip"].startswith("92.126.11.")
                end_s = math.floor(event["event_time"] / 10) * 10.0 + 10
            except (ValueError, KeyError, TypeError):
                continue
            if of_interest:
                loads[city, end_s].append(event["load"])
    summaries = {key: (max(values), len(values)) for key, values in loads.items()}
    windows: dict[float, list[float]] = defaultdict(list)
    for (_, end_s), (load_max, _) in summaries.items():
        windows[math.floor(end_s / 30) * 30.0].append(load_max)
    averages = {start_s: sum(values) / len(values) for start_s, values in windows.items()}
    return summaries, {start_s: value for start_s, value in averages.items() if value > 2}


def kill(run: subprocess.Popen[str], when: Callable[[], bool]) -> None:
    while run.poll() is None and not when():
        time.sleep(0.05)
    assert run.poll() is None, run.communicate()[1]
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def test_whoever_is_killed_the_country_has_everything_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'country.db'}"
    for name in ("lyon", "paris", "country"):
        text = (EXAMPLE / f"{name}.toml").read_text().replace("sqlite:///country.db", url)
        # Several batches each, so that there is a middle. A city is waited for however long it takes to come back.
        more = "max_rows = 800\n" + ("upstream_timeout_s = 3600\n" if name == "country" else "")
        (tmp_path / f"{name}.toml").write_text(text.replace("[pipeline]\n", f"[pipeline]\n{more}"))
    runs = {name: run(tmp_path / f"{name}.toml") for name in ("lyon", "paris", "country")}
    kill(runs["paris"], lambda: any(one["city"] == "paris" for one in documents(url, "cities")))
    runs["paris"] = run(tmp_path / "paris.toml")
    kill(runs["country"], lambda: bool(documents(url, "country.alerts")) or runs["paris"].poll() is not None)
    runs["country"] = run(tmp_path / "country.toml")
    for name, each in runs.items():
        answer, stderr = each.communicate()
        assert each.returncode == 0, f"{name}: {stderr}"
        document = json.loads(answer)
        assert (document["lost"], document["duplicated"], document["disordered"], document["late"]) == (0, 0, 0, 0)
    summaries, alerts = reference()
    found = [
        ((one["city"], one["window_end"]), (one["load_max"], one["events"])) for one in documents(url, "cities")
    ]
    assert len(found) == len(summaries)
    assert dict(found) == summaries
    alarms = [(one["window_start"], one["value"]) for one in documents(url, "country.alerts")]
    assert len(alarms) == len(alerts) > 0
    assert dict(alarms) == pytest.approx(alerts)
