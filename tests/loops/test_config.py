"""Loops in TOML: what is right is built, what is wrong is named with place, value and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.control.controllers import catalogue
from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.proportional_rule import ProportionalRule
from flyball.control.guard.guard import Guard
from flyball.control.wrappers import Ewma, Slew
from flyball.loops.config import ConfigError, LoopsFile, load_toml, schema
from flyball.loops.telemetry.memory import MemorySink
from flyball.loops.telemetry.sqlite import SqliteSink

GOOD = """
[[loop]]
name = "prefetch"
goal = 400
controller = { name = "pi", kp = -0.0016, ki = 0.0060 }
"""


def _load(folder: Path, text: str) -> LoopsFile:
    path = folder / "loops.toml"
    path.write_text(text)
    return load_toml(path, LoopsFile)


def test_the_least_file(tmp_path: Path) -> None:
    (config,) = _load(tmp_path, GOOD).loop
    loop = config.loop(sensor=lambda: 1.0, actuator=lambda _: None)
    assert loop.controller == Pi(kp=-0.0016, ki=0.0060)
    assert (loop.name, loop.goal, loop.period_s, loop.mode) == ("prefetch", 400.0, 1.0, "advise")
    assert loop.policy.guard == Guard()


def test_everything_at_once(tmp_path: Path) -> None:
    text = f"""
[[loop]]
name = "prefetch"
goal = 400.0
period_s = 5.0
mode = "on"
limits = [1.0, 360.0]
command = 10.0
blocking = true
controller = {{ name = "pi", kp = -0.0016, ki = 0.0060 }}
filter = [{{ name = "ewma", keep = 0.5 }}, {{ name = "slew", rise = 2.0 }}]
guard = {{ patience = 40, on_lost = "alert" }}

[[loop]]
name = "second"
goal = 1.0
guard = false
controller = {{ name = "hpa" }}

[[loop]]
name = "third"
goal = 1.0
controller = {{ name = "gain_scheduled", regions = [{{ above = 0.0, kp = 1.0, ki = 0.5 }}] }}

[telemetry]
memory = {{ capacity = 10 }}
sqlite = {{ path = "{tmp_path}/records.db", max_rows = 5 }}
"""
    content = _load(tmp_path, text)
    first, second, third = (loop.loop(sensor=lambda: 1.0, actuator=lambda _: None) for loop in content.loop)
    assert first.controller == Slew(Ewma(Pi(-0.0016, 0.0060), keep=0.5), rise=2.0)
    assert first.policy.guard == Guard(patience=40, on_lost="alert")
    assert (first.policy.limits, first.command, first.mode, first.blocking) == ((1.0, 360.0), 10.0, "on", True)
    assert second.controller == ProportionalRule()
    assert second.policy.guard is None
    assert third.controller == GainScheduled(regions=(Region(above=0.0, kp=1.0, ki=0.5),))
    memory, sqlite = content.telemetry.sinks()
    assert isinstance(memory, MemorySink)
    assert isinstance(sqlite, SqliteSink)
    sqlite.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("periods_s = 5.0", "there is no key loop[prefetch].periods_s (here 5.0); did you mean period_s?"),
        ("colour = 'red'", "there is no key loop[prefetch].colour (here 'red'); there are: name, goal"),
        ("period_s = 'five'", "loop[prefetch].period_s = 'five': input should be a valid number, not text"),
        ("period_s = 0", "loop[prefetch].period_s = 0: input should be greater than 0"),
        ("mode = 'of'", "loop[prefetch].mode = 'of': input should be 'advise', 'shadow' or 'on'"),
        ("limits = [5.0, 1.0]", "got (5.0, 1.0)"),
        ("limits = [5.0]", "loop[prefetch].limits[number 2]"),
        ("blocking = 1", "loop[prefetch].blocking = 1: input should be a valid boolean, not a whole number"),
        (
            "filter = [{ name = 'ewma', keep = 2.0 }]",
            "loop[prefetch].filter[ewma]: Ewma.keep must be a number >= 0",
        ),
        ("filter = [{ name = 'ewma' }]", "loop[prefetch].filter[ewma].keep is missing; add it"),
        ("filter = [{ name = 'bumpless' }]", "filter[bumpless].name = 'bumpless': is one of"),
        ("guard = { patience = 0 }", "Guard.patience must be an integer >= 1, got 0"),
        (
            "guard = { patince = 3 }",
            "there is no key loop[prefetch].guard.patince (here 3); did you mean patience?",
        ),
    ],
)
def test_mistakes_in_a_loop(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, GOOD + line + "\n")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/loops.toml: ")


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        ('{ name = "pie" }', "loop[prefetch].controller.name = 'pie': is one of fixed, p, pi"),
        ("{ kp = 1.0 }", "its name is missing"),
        ('{ name = "pi", kp = 1.0 }', "loop[prefetch].controller.ki is missing; add it"),
        (
            '{ name = "pi", kp = 1.0, ki = "x" }',
            "loop[prefetch].controller.ki = 'x': input should be a valid number",
        ),
        (
            '{ name = "pi", kp = 1.0, ki = true }',
            "loop[prefetch].controller.ki = True: input should be a valid number",
        ),
        (
            '{ name = "pi", kp = nan, ki = 1.0 }',
            "loop[prefetch].controller: Pi.kp must be a finite number, got nan",
        ),
        (
            '{ name = "pi", kp = 1.0, ki = 1.0, kj = 2.0 }',
            "no key loop[prefetch].controller.kj (here 2.0); there are: name, kp, ki",
        ),
        (
            '{ name = "gain_scheduled", regions = [{ above = 0.0, kp = 1.0, ki = 0.5, kq = 1.0 }] }',
            "no key loop[prefetch].controller.regions[number 1].kq (here 1.0); there are: above, kp, ki, kd",
        ),
    ],
)
def test_mistakes_in_a_controller(tmp_path: Path, controller: str, words: str) -> None:
    text = f'[[loop]]\nname = "prefetch"\ngoal = 400.0\ncontroller = {controller}\n'
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "loop is missing; add it"),
        ("loop = []", "there is no loop; add one that begins with [[loop]]"),
        ("[[loop]]\nname = pi", "is not TOML: Invalid value (at line 2, column 8)"),
        (GOOD + GOOD, "names of loops must be unique, got 'prefetch' twice"),
        ('[[loop]]\nname = "x"\ncontroller = { name = "fixed" }', "loop[x].goal is missing; add it"),
        (GOOD + "[telemetry]\nmemori = 1", "there is no key telemetry.memori (here 1); did you mean memory?"),
        (GOOD + "[telemetry.sqlite]\nmax_rows = 1", "telemetry.sqlite.path is missing"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path / "absent.toml", LoopsFile)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path, LoopsFile)
    path = tmp_path / "latin.toml"
    path.write_bytes(b"name = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_toml(path, LoopsFile)


def test_the_schema_knows_every_controller_and_its_help() -> None:
    definitions = schema()["$defs"]
    for entry in catalogue.describe():
        (model,) = (
            d
            for d in definitions.values()
            if entry.name in (d.get("properties", {}).get("name", {}).get("enum") or [])
            or d.get("properties", {}).get("name", {}).get("const") == entry.name
        )
        assert model["description"] == entry.help
        assert model["additionalProperties"] is False
        for parameter in entry.parameters:
            assert model["properties"][parameter.name]["description"] == parameter.meaning
            assert (parameter.name in model["required"]) == parameter.required
