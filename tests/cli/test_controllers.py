from __future__ import annotations

import json

import pytest

from flyball.control.controllers.catalogue import NAMES
from flyball.control.wrappers import WRAPPERS
from tests.cli.programs import call


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return call(capsys, "controllers", *arguments)


def test_lists_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    first_words = [line.split()[0] for line in out.splitlines() if line]
    assert code == 0
    assert first_words == ["controller", *NAMES, "consumer's", "little", "wrapper", *WRAPPERS]


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert [entry["name"] for entry in document["controllers"]] == list(NAMES)
    assert [entry["name"] for entry in document["wrappers"]] == list(WRAPPERS)


def test_shows_the_default_controller_of_consumers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "little")
    assert code == 0
    assert out.startswith("little: Window = goal × residence time")
    assert "keep       float" in out
    document = json.loads(run(capsys, "little", "--json")[1])
    assert document["parameters"][0]["default"] == {"kp": 0.0, "ki": 0.1}


def test_shows_one_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "pid")
    assert code == 0
    assert "Formula: u(k)" in out
    assert "derivative_filter  float" in out


def test_one_as_json_with_nested_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "gain_scheduled", "--json")
    parameters = {p["name"]: p for p in json.loads(out)["parameters"]}
    assert parameters["regions"]["required"] is True
    assert [p["name"] for p in parameters["regions"]["parts"]] == ["above", "kp", "ki", "kd"]
    assert parameters["by"]["default"] == "setpoint"


def test_knows_aliases_and_wrappers(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "hpa", "--json")[1])["name"] == "proportional_rule"
    assert json.loads(run(capsys, "dither", "--json")[1])["name"] == "dither"


def test_unknown_name_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "pdi")
    assert (code, out) == (2, "")
    assert err.startswith("flyball: there is no controller 'pdi'; there are: fixed, p, pi")
    assert "Traceback" not in err
