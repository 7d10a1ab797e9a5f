"""Cities feed a state, and it a country: results are those of plain Python, whoever is late, silent or killed."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import END_OF_INPUT, is_mark
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.run.inline import InlinePipeline
from tests.pipeline.run.test_inline import publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 53
CITIES = ("lyon", "paris")


def city(name: str) -> PipelineConfig:
    summary = {"name": "cities", "kind": "summary", "window_s": 10, "to": "cities", "group_by": ["city"]}
    return PipelineConfig.model_validate(
        {
            "name": name,
            "columns": "id bigint, city string, load double, event_time double",
            "event_time": "event_time",
            "max_rows": 400,
            "tier1": [{"keep": "load > 0.5"}],
            "rules": [summary | {"aggregates": {"load_max": "max(load)", "events": "count(*)"}}],
            "feeds": ["cities"],
        }
    )


def state() -> PipelineConfig:
    rules = [
        {"name": "busy", "aggregate": "sum", "column": "events", "window_s": 60, "above": 0},
        {
            "name": "top",
            "aggregate": "max",
            "column": "load_max",
            "window_s": 60,
            "above": 0,
            "group_by": ["city"],
        },
        {
            "name": "states",
            "kind": "summary",
            "window_s": 60,
            "to": "states",
            "aggregates": {"load_max": "max(load_max)", "events": "sum(events)"},
        },
    ]
    return PipelineConfig.model_validate(
        {
            "name": "rhone",
            "feeds": ["states"],
            "input": "cities",
            "upstream": list(CITIES),
            "upstream_timeout_s": 3600,
            "columns": "city string, load_max double, events bigint, event_time double",
            "event_time": "event_time",
            "rules": rules,
        }
    )


def country() -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "name": "france",
            "input": "states",
            "upstream": ["rhone"],
            "upstream_timeout_s": 3600,
            "columns": "load_max double, events double, event_time double",
            "event_time": "event_time",
            "rules": [{"name": "all", "aggregate": "sum", "column": "events", "window_s": 120, "above": 0}],
        }
    )


def random_bodies(name: str, count: int) -> list[bytes]:
    """Within the watermark in disorder; Paris sees nothing of interest for a long while."""
    rng = random.Random(f"{SEED} {name}")
    bodies = []
    for number in range(count):
        time_s = round(6000 + number / 5 - rng.uniform(0, 4), 2)
        quiet = name == "paris" and 0.3 < number / count < 0.7
        load = round(rng.uniform(0, 0.4 if quiet else 1.0), 4)
        bodies.append(json.dumps({"id": number, "city": name, "load": load, "event_time": time_s}).encode())
    return bodies


def reference(bodies: Sequence[bytes]) -> tuple[list[tuple[float, str, int]], dict[Any, float]]:
    """(what the state sees, in order of time; its alerts by rule, window and city)."""
    windows: dict[tuple[float, str], list[float]] = defaultdict(list)
    for event in map(json.loads, bodies):
        if event["load"] > 0.5:
            windows[math.floor(event["event_time"] / 10) * 10.0 + 10, event["city"]].append(event["load"])
    seen = [(end, name, len(loads)) for (end, name), loads in windows.items()]
    alerts: dict[Any, float] = defaultdict(float)
    for (end, name), loads in windows.items():
        start = math.floor(end / 60) * 60.0
        alerts["busy", start, None] += len(loads)
        alerts["top", start, name] = max(alerts["top", start, name], *loads)
    return sorted(seen), dict(alerts)


def documents(url: str, log: str) -> list[dict[str, Any]]:
    with open_log_reader(url, log) as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return [json.loads(body) for body in bodies if not is_mark(body)]


def results(url: str, log: str) -> list[dict[str, Any]]:
    with open_log_reader(url, log) as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return [row for body in bodies for row in entry.in_order(entry.decode(body)).to_pylist()]


def run(url: str, config: PipelineConfig, folder: Path, spark: SparkSession) -> None:
    pipeline = InlinePipeline(url, config, folder / str(config.name), spark=spark)
    pipeline.start()
    try:
        pipeline.drain()
    finally:
        pipeline.stop()


class Killed(Exception):
    """Stands for kill -9: nothing after it happens."""


def test_two_cities_feed_a_state_that_feeds_a_country(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = {name: random_bodies(name, 1600) for name in CITIES}
    # Lyon is done before Paris has begun: nobody may take Paris for late.
    publish(url, [*bodies["lyon"], END_OF_INPUT], "lyon.events")
    run(url, city("lyon"), tmp_path, spark)
    run(url, state(), tmp_path, spark)
    assert results(url, "rhone.results") == []
    # Paris dies after it has written a batch of summaries, and goes on later.
    publish(url, bodies["paris"][:800], "paris.events")
    append = LogSinks.append

    def dying(self: LogSinks, to: str, producer: str, batch: int, what: Sequence[bytes]) -> None:
        append(self, to, producer, batch, what)
        if to == "cities" and batch >= 1 and what:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LogSinks, "append", dying)
        with pytest.raises(Exception, match="the query rule-cities failed"):
            run(url, city("paris"), tmp_path, spark)
    assert documents(url, "cities")[-1]["city"] == "paris"
    run(url, city("paris"), tmp_path, spark)
    run(url, state(), tmp_path, spark)
    early = [row["event_time"] for row in results(url, "rhone.results")]
    assert early
    publish(url, [*bodies["paris"][800:], END_OF_INPUT], "paris.events")
    run(url, city("paris"), tmp_path, spark)
    run(url, state(), tmp_path, spark)
    wanted, alerts = reference([*bodies["lyon"], *bodies["paris"]])
    found = [(row["event_time"], row["city"], row["events"]) for row in results(url, "rhone.results")]
    assert sorted(found) == wanted, f"seed {SEED}"
    assert [row[0] for row in found] == [row[0] for row in wanted]
    assert documents(url, "rhone.late") == []
    reported = [
        ((one["rule"], one["window_start"], one.get("city")), one["value"])
        for one in documents(url, "rhone.alerts")
    ]
    assert len(reported) == len(alerts)
    assert dict(reported) == pytest.approx(alerts)
    # One level up the state's minutes come in, each at its end, and nothing else.
    run(url, country(), tmp_path, spark)
    minutes = {start + 60: events for (rule, start, _), events in alerts.items() if rule == "busy"}
    summaries = {row["event_time"]: row["events"] for row in results(url, "france.results")}
    assert summaries == minutes
    doubled: dict[float, float] = defaultdict(float)
    for end, events in minutes.items():
        doubled[math.floor(end / 120) * 120.0] += events
    assert {one["window_start"]: one["value"] for one in documents(url, "france.alerts")} == doubled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feeds": ["citys"]}, "feeds names 'citys', to which no rule writes; there are: cities"),
        ({"name": None}, "feeds needs a name"),
        ({"upstream": ["a", "a"]}, "upstream names a pipeline twice: a, a; remove one"),
    ],
)
def test_a_hierarchy_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PipelineConfig.model_validate({**city("lyon").model_dump(exclude_none=True), **change})
