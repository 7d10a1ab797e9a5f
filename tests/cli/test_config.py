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


def test_a_loop_with_a_model_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loops.toml"
    path.write_text(GOOD)
    assert exit_code("config", "check", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["loops"][0]["verification"].startswith(
        "not verified: there is no model"
    )
    model = "model = { a = 0.985, b = -134.0 }\n"
    gains = GOOD.replace("kp = 0.1, ki = 0.2", "kp = -0.00614, ki = 0.02168")
    path.write_text(gains + model)  # to look at
    assert exit_code("config", "check", str(path)) == 0
    assert "unstable: a closed-loop pole lies at 4.03" in capsys.readouterr().out
    for verdict, text in (
        ("unstable", gains + model + 'mode = "on"\n'),
        (
            "unstable",
            GOOD.replace("kp = 0.1, ki = 0.2", "kp = -0.0036, ki = -0.0014") + model + 'mode = "on"\n'
            'filter = [{ name = "ewma", keep = 0.9 }]\n',
        ),
        ("fragile", GOOD.replace("kp = 0.1, ki = 0.2", "kp = -0.00614, ki = -0.00799") + model + 'mode = "on"\n'),
    ):
        path.write_text(text)
        assert exit_code("config", "check", str(path)) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"is {verdict}: " in captured.err
    path.write_text(text + "allow_fragile = true\n")
    assert exit_code("config", "check", str(path)) == 0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("{ a = 0.5 }", "model.b is missing"),
        ("{ a = 0.5, b = nan }", "finite"),
        ("{ a = 1, b = 1, delay = -1 }", "delay"),
    ],
)
def test_a_wrong_model_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, words: str
) -> None:
    path = tmp_path / "loops.toml"
    path.write_text(f"{GOOD}model = {model}\n")
    assert exit_code("config", "check", str(path)) == 2
    assert words in capsys.readouterr().err
