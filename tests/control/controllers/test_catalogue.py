from __future__ import annotations

import dataclasses
import inspect

import pytest

from flyball.control.controllers import catalogue
from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.wrappers import WRAPPERS, describe_wrappers
from flyball.errors import InvalidValue

ISSUED = {
    "fixed",
    "p",
    "pi",
    "pid",
    "pi_ff",
    "state_feedback",
    "gain_scheduled",
    "self_tuning",
    "lqr",
    "aimd",
    "proportional_rule",
    "static",
    "batch-aimd",
    "auto",
}


def test_names_every_controller_once() -> None:
    assert set(catalogue.NAMES) == ISSUED
    assert len({catalogue.class_of(name) for name in catalogue.NAMES}) == len(ISSUED)


@pytest.mark.parametrize("cls", [*map(catalogue.class_of, catalogue.NAMES), *WRAPPERS.values()])
def test_every_entry_documents_its_formula_and_all_its_fields(cls: type) -> None:
    text = inspect.getdoc(cls) or ""
    assert ">>>" in text
    assert text.split("\n")[0].endswith(".")
    for field in dataclasses.fields(cls):
        assert field.metadata.get("help"), f"{cls.__name__}.{field.name} has no help"


def test_makes_by_name_and_alias() -> None:
    assert catalogue.make("pi", kp=1.0, ki=2.0) == catalogue.class_of("pi")(1.0, 2.0)
    assert catalogue.make("hpa") == catalogue.make("proportional_rule")
    assert catalogue.class_of("state") is catalogue.class_of("state_feedback")


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("pdi", {}, "there is no controller 'pdi'; there are: fixed, p, pi"),
        ("pi", {"kp": 1.0}, "controller 'pi' needs ki, got kp"),
        ("pi", {"kp": 1.0, "ki": 1.0, "kd": 1.0}, "no parameter 'kd'; it has: kp, ki"),
    ],
)
def test_refusals_say_what_would_be_valid(name: str, config: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        catalogue.make(name, **config)


def test_describes_types_defaults_and_nested_configurations() -> None:
    (entry,) = catalogue.describe("gain_scheduled")
    by_name = {p.name: p for p in entry.parameters}
    assert by_name["regions"].required
    assert [p.name for p in by_name["regions"].parts] == [f.name for f in dataclasses.fields(Region)]
    assert (by_name["by"].type, by_name["by"].default) == ("'setpoint' | 'disturbance'", "setpoint")
    assert [p.name for p in entry.parameters] == [f.name for f in dataclasses.fields(GainScheduled)]


def test_describes_wrappers_too() -> None:
    assert [entry.name for entry in describe_wrappers()] == list(WRAPPERS)
