"""The example runs as it is; a config that cannot work is refused before Spark starts: key, value, remedy."""

from __future__ import annotations

import ipaddress
import json
import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.demo import events as demo_events
from flyball.pipeline.logs.marks import is_mark
from tests.cli.programs import call
from tests.pipeline.reference import expected
from tests.pipeline.run.test_standalone import counted, submit

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(folder: Path, *change: tuple[str, str]) -> Path:
    text = (EXAMPLES / "pipeline.toml").read_text()
    for old, new in change:
        assert old in text
        text = text.replace(old, new, 1)
    shutil.copy(EXAMPLES / "sites.csv", folder)
    (folder / "pipeline.toml").write_text(text)
    return folder / "pipeline.toml"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("kind = 'performance'", "kid = 'performance'"), "tier1[number 1].keep: \"NOT (kid = 'performance'"),
        (("kind = 'performance'", "kid = 'performance'"), "there is no column 'kid'; did you mean 'kind'?"),
        (
            ("lower(name)", "java_method(name)"),
            "tier1[number 3].set.name: 'java_method(name)': there is no function",
        ),
        (("lower(name)", "lower(load)"), "lower needs a text, not double (load)"),
        (
            ('"sites.csv"', '"absent.csv"'),
            "absent.csv' cannot be read (No such file or directory); name a CSV file",
        ),
        (('add = "site string"', 'add = "city string"'), "has no column 'city'; it has subnet, site"),
        (('on = "ip"', 'on = "load"'), "tier1[number 2].on: the column 'load' is double; an address is a string"),
        (("92.126.10.0/24", "92.126.10.0/40"), "'92.126.10.0/40' is not an IPv4 subnet"),
        (('column = "load"', 'column = "ip"'), "rules[busy-hosts].column names the column 'ip', which is string"),
        (("above = 2", "above = 2\nevery_s = 20"), "rules[busy-hosts].every_s = 20 would leave gaps"),
        (("above = 2", 'above = "two"'), "above = 'two': input should be a valid number"),
        (("window_s = 10\nabove", "window_s = -1\nabove"), "window_s = -1: input should be greater than"),
        (('kind = "summary"', 'kind = "weather"'), "is one of threshold, rate, absence, sequence, summary"),
        (('"max(load)"', '"load"'), "rules[site-summary].aggregates.load_max: 'load': is not an aggregate"),
        (('name = "site-summary"', 'name = "busy-hosts"'), "two rules have the same name"),
        (
            ('to = "sites"', 'to = "results"'),
            "must be a channel of its own, got 'results', which is the pipeline's",
        ),
        (('to = "sites"', 'to = "results.lane-0"'), "got 'results.lane-0', which is the pipeline's results log"),
        (('to = "sites"', 'to = "late"'), "got 'late', which is the pipeline's late log"),
        (('to = "sites"', 'to = "a*b"'), "invalid channel name 'a*b'"),
        (
            ("above = 2", "abvoe = 2"),
            "there is no key pipeline.rules[busy-hosts].abvoe (here 2); did you mean above?",
        ),
        (("event_time double", "event_time string"), "event_time names the column 'event_time', which is string"),
    ],
)
def test_a_config_that_cannot_work_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    code, out, err = call(capsys, "run", example(tmp_path, change), "--json")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "pipeline-data").exists()


def test_the_example_gives_by_spark_submit_what_plain_python_gives(tmp_path: Path) -> None:
    document = counted(submit(example(tmp_path), "--master", "local[2]"))
    reference = expected(demo_events.events(seed=3, count=6000))
    assert document["results"] == reference.results
    assert document["dead_letter"] == reference.dead_letter > 0
    assert document["lost"] == document["duplicated"] == 0
    assert document["alerts"] == len(reference.alerts) > 0
    summaries = {
        (one["window_start"], one["site"]): (one["events"], one.get("load_max"))
        for one in written(tmp_path / "pipeline-data" / "broker.db", "sites")
    }
    assert summaries == by_site(demo_events.events(seed=3, count=6000))


def written(database: Path, log: str) -> list[dict[str, Any]]:
    with open_log_reader(f"sqlite:///{database}", log) as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return [json.loads(body) for body in bodies if not is_mark(body)]


def by_site(bodies: Any) -> dict[tuple[float, str], tuple[int, float | None]]:
    sites = [line.split(",") for line in (EXAMPLES / "sites.csv").read_text().splitlines()[1:]]
    nets = sorted(((ipaddress.ip_network(net), site) for net, site in sites), key=lambda pair: -pair[0].prefixlen)
    loads: dict[tuple[float, str], list[float | None]] = defaultdict(list)
    for body in bodies:
        try:
            event = json.loads(body)
            address, time = ipaddress.ip_address(event["ip"]), event["event_time"] + 0.0
        except (ValueError, KeyError, TypeError):
            continue
        if event["kind"] == "performance" and event["ip"].startswith("92.126.10."):
            continue
        site = next((site for net, site in nets if address in net), "elsewhere")
        loads[math.floor(time / 10) * 10.0, site].append(event.get("load"))
    return {
        key: (len(values), max((value for value in values if value is not None), default=None))
        for key, values in loads.items()
    }
