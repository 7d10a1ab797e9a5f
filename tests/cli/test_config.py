"""flyball config: the schema, and a verdict on a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.programs import exit_code

GOOD = '[[loop]]\nname = "prefetch"\ngoal = 400.0\ncontroller = { name = "pi", kp = 0.1, ki = 0.2 }\n'


def test_schema_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {"loop", "telemetry"}
    assert "Pi" in schema["$defs"]


def test_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loops.toml"
    path.write_text(GOOD)
    assert exit_code("config", "check", str(path)) == 0
    assert "Pi(kp=0.1, ki=0.2)" in capsys.readouterr().out
    assert exit_code("config", "check", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["loops"][0]["name"] == "prefetch"


def test_an_unknown_key_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loops.toml"
    path.write_text(GOOD + "gaol = 3.0\n")
    assert exit_code("config", "check", str(path)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"flyball: {path}: there is no key loop[prefetch].gaol (here 3.0); did you mean goal?\n"
    )
