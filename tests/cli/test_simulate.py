"""flyball simulate: the printed figures, one JSON document, pictures, and one sentence for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import exit_code

RUN = ["simulate", "--a", "0.26", "--b", "59.73", "--goal", "400", "--start", "1"]
PI = ["--controller", "pi", "--kp", "-0.0016", "--ki", "0.0060"]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*RUN, *PI) == 0
    out = capsys.readouterr().out
    assert "output, mean" in out
    assert "settled within 5% after (samples)" in out


def test_it_needs_no_package_beyond_the_core() -> None:
    program = "import sys; sys.modules.update(simpy=None, matplotlib=None); from flyball.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", program, *RUN, *PI], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "output, mean" in answer.stdout


def test_json_is_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    assert exit_code(*RUN, *PI, "--samples", "80", "--plot", str(picture), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean"] == pytest.approx(400.0, rel=1e-4)
    assert found["settling"] == 6
    assert found["overshoot"] == pytest.approx(0.0655, abs=1e-3)
    assert len(found["measurement"]) == len(found["command"]) == 80
    assert "<svg" in picture.read_text()


def test_an_unstable_loop_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    s5 = [
        "simulate",
        "--a",
        "0.985",
        "--b=-134",
        "--delay",
        "1",
        "--goal",
        "400",
        "--kp=-0.00614",
        "--ki=-0.00799",
    ]
    assert exit_code(*s5, "--low=-5", "--high=5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settling"] is None
    assert found["std"] > 100.0
    assert found["saturated"] > 10


def test_noise_seed_and_other_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    def measured(*more: str) -> list[float]:
        pid = ["--controller", "pid", "--set", "kp=0.001", "--set", "ki=0.005", "--set", "kd=0.001"]
        pid += ["--set", "derivative_on=measurement"]
        assert exit_code(*RUN, *pid, "--noise", "30", "--json", *more) == 0
        return list(json.loads(capsys.readouterr().out)["measurement"])

    assert measured("--seed", "3") == measured("--seed", "3")
    assert measured("--seed", "3") != measured("--seed", "4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*RUN, "--controller", "pie"], "controller.name = 'pie': is one of"),
        ([*RUN, "--kp", "0.1"], "controller.ki is missing"),
        ([*RUN, *PI, "--set", "kq=1"], "there is no key controller.kq (here 1)"),
        ([*RUN, *PI, "--set", "kq"], "--set must be KEY=VALUE, got 'kq'"),
        ([*RUN, *PI, "--low", "1"], "--low and --high must be given together"),
        ([*RUN, *PI, "--low", "5", "--high", "1"], "got (5.0, 1.0)"),
        ([*RUN, *PI, "--samples", "1"], "must be >= 2, got 1"),
        ([*RUN, *PI, "--skip", "100"], "--skip must be a number of samples from 0 to 98, got 100"),
        ([*RUN, *PI, "--band", "2"], "--band must be a fraction"),
        ([*RUN, *PI, "--step-at", "100"], "--step-at must be a sample from 0 to 99, got 100"),
        ([*RUN, *PI, "--noise", "-1"], "noise must be a standard deviation >= 0, got -1"),
        ([*RUN, *PI, "--delay", "-1"], "got -1"),
        ([*RUN, *PI, "--plot", "run.jpeg"], "'run.jpeg'"),
        (["simulate", "--a", "x", "--b", "1", "--goal", "1", *PI], "--a must be a number such as"),
        (["simulate", "--a", "nan", "--b", "1", "--goal", "1", *PI], "--a must be a number such as"),
        (["simulate", "--a", "0.5", "--b", "1", "--goal", "nan", *PI], "goal must be a finite number, got nan"),
    ],
)
def test_invalid_options_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err
