"""flyball design as a user meets it: gains with their certificate, or a refusal that leaves nothing to act on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import main
from tests.cli.programs import call, check_one_sentence

PREFETCH = ("--a", "0.26", "--b", "59.73")
EVENTS = ("--a", "0.985", "--b", "-134")
FRAGILE = ("--controller", "pi", "--poles", "0.046+0.4j,0.046-0.4j")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return call(capsys, "design", *arguments)


def document(out: str) -> dict[str, Any]:
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_pi_by_poles(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *PREFETCH, "--controller", "pi", "--poles", "0.5+0.33j,0.5-0.33j", "--json")
    found = document(out)
    assert code == 0
    assert found["verdict"] == "accepted"
    assert found["method"] == "proven"
    assert found["gains"]["kp"] == pytest.approx(-0.00166, abs=1e-5)
    assert found["gains"]["ki"] == pytest.approx(0.00601, abs=1e-5)
    assert found["gains"]["kd"] == 0.0
    assert found["poles"][0] == {"re": pytest.approx(0.5), "im": pytest.approx(0.33)}


@pytest.mark.parametrize("controller", ["p", "pi", "pid", "state"])
def test_a_specification_gives_accepted_gains(capsys: pytest.CaptureFixture[str], controller: str) -> None:
    code, out, _ = run(
        capsys, *PREFETCH, "--controller", controller, "--settling", "6", "--overshoot", "0.1", "--json"
    )
    found = document(out)
    assert code == 0
    assert found["controller"] == controller
    assert found["verdict"] == "accepted"
    assert found["settling"] <= 6.5
    assert found["overshoot"] <= 0.105
    assert {"kp", "ki", "kd"} <= set(found["gains"])
    assert found["gain_margin"] >= 2.0
    assert found["sensitivity_peak"] <= 2.5


def test_gains_of_design_are_accepted_by_verify(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *EVENTS, "--delay", "1", "--controller", "state", "--settling", "8", "--json")
    gains = document(out)["gains"]
    listed = {name: ",".join(map(repr, gains[name])) for name in ("ky", "ku")}
    with pytest.raises(SystemExit) as end:
        main(
            [
                *("verify", *EVENTS, "--delay", "1", "--controller", "state", "--ki", repr(gains["ki"])),
                *("--ky", listed["ky"], "--ku", listed["ku"], "--json"),
            ]
        )
    assert end.value.code in (0, None)
    assert document(capsys.readouterr().out)["verdict"] == "accepted"


def test_a_fragile_design_must_be_allowed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *EVENTS, *FRAGILE, "--json")
    found = document(out)
    assert code == 3
    assert found["verdict"] == "fragile"
    assert found["gains"] is None
    assert found["nearest"]["kp"] < 0.0
    assert "--allow-fragile" in err
    assert "sensitivity peak 3.17 exceeds 2.5" in err
    code, out, _ = run(capsys, *EVENTS, *FRAGILE, "--allow-fragile", "--json")
    assert code == 0
    assert document(out)["gains"]["ki"] == pytest.approx(-0.00799, abs=1e-5)
    code, out, _ = run(capsys, *EVENTS, *FRAGILE)
    assert (code, out) == (3, "")


def test_the_limit_is_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, *EVENTS, "--delay", "1", "--controller", "pi", "--settling", "5", "--overshoot", "0.1"
    )
    assert code == 2
    assert out == ""
    assert err == "flyball: with delay 1 no PI settles in under 10 samples here; state feedback does in 5\n"


def test_unstable_poles_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *PREFETCH, "--controller", "pi", "--poles", "1.2,0.3", "--json")
    assert code == 1
    assert document(out)["verdict"] == "unstable"
    assert document(out)["gains"] is None
    assert "outside the unit circle" in err


def test_a_person_reads_the_verdict_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *PREFETCH, "--controller", "pi", "--poles", "0.5+0.33i, 0.5-0.33i")
    assert out.startswith("accepted: stable with gain margin")
    assert "kp" in out


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    picture = tmp_path / f"loop.{ending}"
    code, out, err = run(
        capsys, *PREFETCH, "--controller", "pi", "--settling", "8", "--plot", str(picture), "--json"
    )
    assert code == 0
    assert document(out)["verdict"] == "accepted"
    assert str(picture) in err
    start = picture.read_bytes()[:300]
    assert start.startswith(b"\x89PNG") if ending == "png" else b"<svg" in picture.read_bytes()[:2000]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--a", "x", "--b", "1", "--controller", "pi", "--settling", "5"), "--a must be a number such as 0.26"),
        (("--a", "nan", "--b", "1", "--controller", "pi", "--settling", "5"), "got 'nan'"),
        ((*PREFETCH, "--controller", "pi", "--settling", "inf"), "--settling must be a number"),
        ((*PREFETCH, "--controller", "pi", "--settling", "5", "--overshoot", "2"), "fraction >= 0 and < 1"),
        ((*PREFETCH, "--controller", "pi", "--poles", "0.5,abc"), "--poles must be numbers such as"),
        ((*PREFETCH, "--controller", "pi", "--poles", "0.5"), "PI places 2 poles, got 1"),
        ((*PREFETCH, "--controller", "pi", "--poles", "0.5+0.1j,0.3"), "conjugate pairs"),
        (
            (*PREFETCH, "--controller", "lqg", "--settling", "5"),
            "--controller must be p, pi, pid or state, got 'lqg'",
        ),
        ((*PREFETCH, "--controller", "pi"), "a specification is needed"),
        (
            (*PREFETCH, "--delay", "-1", "--controller", "pi", "--settling", "5"),
            "--delay must be an integer from 0 to 500",
        ),
        (("--a", "0.5", "--b", "0", "--controller", "pi", "--settling", "5"), "no effect"),
        ((*PREFETCH, "--controller", "pi", "--settling", "5", "--plot", "x.pdf"), ".svg or .png"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    check_one_sentence(capsys, ("design", *arguments), sentence)


def test_the_covariance_is_designed_for(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--a", "0.26", "--b", "59.73", "--controller", "pi", "--settling", "4")
    code, out, _ = run(capsys, *model, "--covariance", "0.0004,0,4", "--json")
    assert code == 0
    assert json.loads(out)["robustness"]["stable_fraction"] == 1.0
    code, _, err = run(capsys, *model, "--covariance", "0.2,0,900")
    assert code == 3
    assert "confidence region" in err
    code, _, err = run(capsys, *model, "--covariance", "-1,0,1")
    assert code == 2
    assert "--covariance must be" in err


def test_the_picture_has_bode_and_nyquist_plots(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "design.svg"
    model = ("--a", "0.26", "--b", "59.73", "--controller", "pi", "--settling", "8")
    assert run(capsys, *model, "--plot", str(picture))[0] == 0
    text = picture.read_text()
    for title in ("Step of the setpoint", "Closed-loop poles", "Bode plot", "Nyquist plot"):
        assert title in text
