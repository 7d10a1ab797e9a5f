"""flyball verify as a user meets it: a certificate, and the exit code that a script can act on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.programs import call, check_one_sentence

PREFETCH = ("--a", "0.26", "--b", "59.73")
EVENTS = ("--a", "0.985", "--b", "-134")
CORRECTED = ("--controller", "pi", "--kp", "-0.00614", "--ki", "-0.00799")
FIELDS = {
    "verdict", "reason", "method", "controller", "plant", "gains", "poles", "jury", "gain_margin",
    "phase_margin_deg", "delay_margin", "sensitivity_peak", "settling", "overshoot", "steady_state_error",
    "robustness", "nearest",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return call(capsys, "verify", *arguments)


def certificate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out)
    assert set(found) >= FIELDS
    return code, found


def test_the_printed_pi_of_the_prefetch_paper_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = certificate(capsys, *PREFETCH, "--controller", "pi", "--kp", "-0.0016", "--ki", "0.0060")
    assert code == 0
    assert found["verdict"] == "accepted"
    assert found["gains"] == {"kp": -0.0016, "ki": 0.006, "kd": 0.0}
    assert found["nearest"] is None


def test_the_printed_ki_of_the_event_paper_is_unstable(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = certificate(capsys, *EVENTS, "--controller", "pi", "--kp", "-0.00614", "--ki", "0.02168")
    assert code == 1
    assert found["verdict"] == "unstable"
    assert found["poles"][0]["re"] == pytest.approx(4.03, abs=0.01)
    assert found["jury"]["stable"] is False
    assert found["nearest"]["ki"] < 0.0


def test_corrected_gains_of_the_event_paper_are_fragile_and_with_delay_unstable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = certificate(capsys, *EVENTS, *CORRECTED)
    assert code == 3
    assert found["verdict"] == "fragile"
    assert found["sensitivity_peak"] == pytest.approx(3.2, abs=0.05)
    code, found = certificate(capsys, *EVENTS, "--delay", "1", *CORRECTED)
    assert code == 1
    assert found["verdict"] == "unstable"
    assert found["pole_radius"] == pytest.approx(1.515, abs=0.001)


def test_pid_and_p(capsys: pytest.CaptureFixture[str]) -> None:
    gains = ("--kp", "0.0017761", "--ki", "0.0058096", "--kd", "0.0018417")
    code, found = certificate(capsys, *PREFETCH, "--controller", "pid", *gains)
    assert (code, found["controller"]) == (0, "pid")
    code, found = certificate(capsys, *PREFETCH, "--controller", "p", "--kp", "0.02")
    assert (code, found["verdict"]) == (3, "fragile")
    assert found["steady_state_error"] == pytest.approx(0.38, abs=0.005)


def test_the_models_of_a_confidence_region_are_verified(capsys: pytest.CaptureFixture[str]) -> None:
    gains = ("--controller", "pi", "--kp", "-0.0016", "--ki", "0.0060")
    code, found = certificate(capsys, *PREFETCH, *gains, "--covariance", "0.02,0,3000")
    assert code == 3
    assert found["robustness"]["stable_fraction"] < 1.0
    code, found = certificate(capsys, *PREFETCH, *gains, "--covariance", "0.0001,0,1")
    assert code == 0
    assert found["robustness"]["stable_fraction"] == 1.0


def test_a_person_reads_the_verdict_and_reason_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *EVENTS, *CORRECTED)
    assert out.startswith("fragile: stable, but the gain margin 1.46 is below 2")
    assert "nearest gains that pass: kp=" in out


def test_an_unstable_loop_is_drawn_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "loop.png"
    code, _, err = run(capsys, *EVENTS, "--delay", "1", *CORRECTED, "--plot", str(picture))
    assert code == 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*PREFETCH, "--controller", "pi", "--kp", "abc", "--ki", "1"), "--kp must be a number"),
        ((*PREFETCH, "--controller", "pi", "--kp", "inf", "--ki", "1"), "--kp must be a number"),
        ((*PREFETCH, "--controller", "pi", "--kp", "1"), "--controller pi needs --ki"),
        ((*PREFETCH, "--controller", "p", "--kp", "1", "--ki", "2"), "--controller p has no --ki, got '2'"),
        ((*PREFETCH, "--controller", "pid", "--kp", "1", "--ki", "2"), "needs --kd"),
        ((*PREFETCH, "--controller", "state", "--ki", "1"), "needs --ky"),
        ((*PREFETCH, "--controller", "p", "--kp", "1", "--covariance", "1,2"), "three numbers"),
        (("--a", "", "--b", "1", "--controller", "p", "--kp", "1"), "--a must be a number"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    check_one_sentence(capsys, ("verify", *arguments), sentence)
