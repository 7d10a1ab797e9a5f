"""flyball identify as a user meets it: a file in, a model or one clear sentence out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flyball.control.models import first_order
from tests.cli.programs import call

RAMP = Path(__file__).parents[3] / "shared" / "data" / "rabbitmq-ramp.csv"
FIELDS = {"a", "b", "c", "delay", "r2", "rmse", "r2_free_run", "linear_range", "confidence", "residuals_white"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return call(capsys, "identify", *arguments)


def recording(
    path: Path, seed: int = 1, *, align: str = "next", separator: str = ",", limit: float = 99.0
) -> Path:
    random = np.random.default_rng(seed)
    u = np.repeat(random.integers(1, 41, 200), 2).astype(float)
    y = np.zeros(u.size)
    drive = np.minimum(u, limit) if align == "same" else np.minimum(np.concatenate([[0.0], u[:-1]]), limit)
    for k in range(1, u.size):
        y[k] = 0.26 * y[k - 1] + 59.73 * drive[k] + 10.0 + random.normal(0.0, 20.0)
    lines = [separator.join(("t", "u", "y")), *(f"{k}{separator}{u[k]}{separator}{y[k]}" for k in range(u.size))]
    path.write_text("\n".join(lines) + "\n")
    return path


def identify(capsys: pytest.CaptureFixture[str], file: Path, *more: str) -> dict[str, Any]:
    code, out, _ = run(capsys, str(file), "--input", "u", "--output", "y", "--json", *more)
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("align", ["same", "next"])
def test_json_has_the_model(capsys: pytest.CaptureFixture[str], tmp_path: Path, align: str) -> None:
    document = identify(capsys, recording(tmp_path / "r.csv", align=align))
    assert {*FIELDS, "warnings"} <= set(document)
    assert document["a"] == pytest.approx(0.26, abs=0.02)
    assert document["b"] == pytest.approx(59.73, rel=0.02)
    assert (document["delay"], document["align"], document["residuals_white"]) == (0, align, True)
    assert document["linear_range"] == [1.0, 40.0]
    assert document["rmse"] == pytest.approx(20.0, rel=0.15)
    for name, (low, high) in document["confidence"].items():
        assert low < document[name] < high
    assert set(document["confidence"]) == {"a", "b", "c"}


def test_options_reach_the_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = recording(tmp_path / "r.csv")
    assert identify(capsys, file, "--align", "same")["delay"] == 1
    poor = identify(capsys, file, "--delay", "3", "--align", "next")
    assert poor["delay"] == 3
    assert poor["r2"] < 0.8
    assert poor["warnings"]
    without = identify(capsys, file, "--no-offset")
    assert without["c"] == 0.0
    assert set(without["confidence"]) == {"a", "b"}


def test_linear_range_and_test_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train = recording(tmp_path / "train.csv", limit=22.0)
    test = recording(tmp_path / "test.csv", seed=2, limit=22.0)
    document = identify(capsys, train, "--test", str(test))
    assert document["linear_range"][1] == pytest.approx(22.0, abs=1.0)
    assert document["b"] == pytest.approx(59.73, rel=0.03)
    assert document["test"]["r2"] > 0.95
    assert document["test"]["rmse"] == pytest.approx(20.0, rel=0.2)
    assert document["test"]["samples"] < 300


def test_table_for_people(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, str(recording(tmp_path / "r.csv", limit=22.0)), "--input", "u", "--output", "y")
    assert code == 0
    assert "y(k+1) = 0.2" in out
    assert "R², free run" in out
    assert "warning: linear only for inputs from 1 to 2" in err


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"fit.{ending}"
    identify(capsys, recording(tmp_path / "r.csv"), "--plot", str(picture))
    head = picture.read_bytes()[:200]
    assert (b"<svg" in picture.read_bytes()) if ending == "svg" else head.startswith(b"\x89PNG")


@pytest.mark.parametrize("separator", [";", "\t", " ", "|"])
def test_other_separators(capsys: pytest.CaptureFixture[str], tmp_path: Path, separator: str) -> None:
    comma = identify(capsys, recording(tmp_path / "a.csv"))
    assert identify(capsys, recording(tmp_path / "b.txt", separator=separator)) == comma


def test_parquet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    csv = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = recording(tmp_path / "r.csv")
    parquet.write_table(csv.read_csv(file), tmp_path / "r.parquet")
    assert identify(capsys, tmp_path / "r.parquet") == identify(capsys, file)
    (tmp_path / "bad.parquet").write_text("no parquet")
    code, _, err = run(capsys, str(tmp_path / "bad.parquet"), "--input", "u", "--output", "y")
    assert (code, "not a Parquet file" in err) == (2, True)


def test_unstable_and_insignificant_fits_exit_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    u = np.tile([1.0, 4.0, 2.0, 7.0, 3.0], 40)
    growing = first_order(1.3, 1.0).simulate(u[:-1])
    noise = np.random.default_rng(3).normal(size=200)
    for name, y, word in (("grow", [0.0, *growing], "unstable"), ("noise", noise, "no significant effect")):
        (tmp_path / name).write_text("u,y\n" + "\n".join(f"{a},{b}" for a, b in zip(u, y, strict=True)))
        document = identify(capsys, tmp_path / name, "--align", "next", "--delay", "0")
        assert any(word in warning for warning in document["warnings"]), name


@pytest.mark.skipif(not RAMP.exists(), reason="the public recording is not beside this checkout")
def test_public_ramp(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, str(RAMP), "--input", "prefetch", "--output", "arrival_rate", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["linear_range"][0] == 1.0
    assert 10.0 <= document["linear_range"][1] <= 40.0
    assert document["r2"] > 0.9


ROWS = "\n".join(f"{k % 7},{k * k % 11}" for k in range(40))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("u,y\n", "no rows"),
        ("u,z\n" + ROWS, "line 1: no column 'y'; columns: u, z"),
        ("u,y,y\n1,2,3", "2 columns are called 'y'"),
        ("u,y\n1,2\n2,abc\n", "line 3, column 'y': 'abc' is not a number"),
        ("u,y\n1,2\n\n2,\n", "1 samples are too few"),
        ("u,y\n" + "1,2\n,\n2,5\n,\n" * 40, "the gaps leave 0 rows"),
        ("u,y\n1,inf\n", "line 2, column 'y': 'inf' is not a finite number"),
        ("u;y\n1;2,5\n", "'2,5' is not a number; write it with a decimal point"),
        ("u,y\n1,2,3\n", "line 2: 3 values but the header has 2 columns"),
        ("1,2\n3,4\n", "add a header line"),
        ("u,y\n" + "5,1\n5,2\n" * 20, "the input 'u' is constant (5 in all 40 samples)"),
        ("u,y\n" + "1,3\n2,3\n" * 20, "the output 'y' is constant"),
        ("u,y\n1,2\n2,3\n", "2 samples are too few"),
    ],
)
def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    code, out, err = run(capsys, str(file), "--input", "u", "--output", "y", "--json")
    assert (code, out) == (2, "")
    assert words in err
    assert str(file) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--delay", "soon"], "got 'soon'"),
        (["--delay", "-1"], "got '-1'"),
        (["--align", "left"], "got 'left'"),
        (["--plot", "picture.pdf"], "saved as .svg or .png, got 'picture.pdf'"),
        (["--plot", "no-such-folder/picture.svg"], "no folder 'no-such-folder'"),
        (["--test", "no-such-file.csv"], "file 'no-such-file.csv' does not exist"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: str) -> None:
    file = recording(tmp_path / "r.csv")
    code, out, err = run(capsys, str(file), "--input", "u", "--output", "y", *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    code, _, err = run(capsys, str(tmp_path / name), "--input", "u", "--output", "y")
    assert code == 2
    assert err.count("\n") == 1


def test_binary_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_bytes(b"u,y\n1,\xff\xfe\n")
    code, _, err = run(capsys, str(tmp_path / "b.csv"), "--input", "u", "--output", "y")
    assert (code, "0xff" in err) == (2, True)


def rows_of(seed: int, a: float, samples: int, *, level: float = 0.0) -> list[tuple[float, float]]:
    """Input and output of y(k+1) = a·y(k) + 2·u(k) + 5 with noise, as rows."""
    random = np.random.default_rng(seed)
    u = random.uniform(2.0, 22.0, samples) + level
    y = [(2.0 * u[0] + 5.0) / (1.0 - a)]
    for value in u[:-1]:
        y.append(a * y[-1] + 2.0 * float(value) + 5.0 + float(random.normal()))
    return list(zip(u.tolist(), y, strict=True))


def test_rows_that_are_missing_are_gaps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An empty cell, and lines that were removed, where a time column shows it."""
    rows = rows_of(5, 0.9, 500)
    gone = np.random.default_rng(6).random(500) < 0.3
    file = tmp_path / "r.csv"
    file.write_text("u,y\n" + "".join(f"{u},\n" if gone[k] else f"{u},{y}\n" for k, (u, y) in enumerate(rows)))
    assert identify(capsys, file, "--align", "next")["a"] == pytest.approx(0.9, abs=0.02)
    file.write_text("t,u,y\n" + "".join(f"{k},{u},{y}\n" for k, (u, y) in enumerate(rows) if not gone[k]))
    assert identify(capsys, file, "--align", "next", "--time", "t")["a"] == pytest.approx(0.9, abs=0.02)
    unsaid = identify(capsys, file, "--align", "next")["a"]
    assert abs(unsaid - 0.9) > 0.02


def test_several_files_are_recordings_of_one_plant(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = []
    for seed, level in enumerate((0.0, 60.0, -40.0)):
        files.append(tmp_path / f"{seed}.csv")
        files[-1].write_text("u,y\n" + "".join(f"{u},{y}\n" for u, y in rows_of(seed, 0.7, 60, level=level)))
    document = identify(capsys, files[0], *map(str, files[1:]), "--align", "next")
    assert document["a"] == pytest.approx(0.7, abs=0.02)
    assert document["delay"] == 0
    assert document["samples"] <= 3 * 59


def test_the_covariance_goes_into_verify_and_design(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document = identify(capsys, recording(tmp_path / "r.csv"))
    assert document["design_delay"] == 1  # the recording does not say which of two it is
    matrix = ",".join(map(str, document["covariance"]))
    model = ["--a", str(document["a"]), "--b", str(document["b"]), "--delay", str(document["design_delay"])]
    code, out, _ = call(
        capsys,
        "verify",
        *model,
        "--controller",
        "pi",
        "--kp",
        "0",
        "--ki",
        "0.002",
        "--covariance",
        matrix,
        "--json",
    )
    assert code == 0
    assert json.loads(out)["robustness"]["stable_fraction"] == 1.0
    _, out, _ = run(capsys, str(tmp_path / "r.csv"), "--input", "u", "--output", "y")
    assert "design for 1" in out
    assert "--covariance" in out


def telemetry(path: Path) -> Path:
    """Telemetry of two loops in one file, row by row."""
    lines = ["loop,time,setpoint,command,measurement"]
    for k, (one, other) in enumerate(zip(rows_of(1, 0.3, 120), rows_of(2, 0.8, 120), strict=True)):
        lines += [f"{name},{k},50,{u},{y}" for name, (u, y) in (("slow", other), ("quick", one))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_telemetry_of_two_loops_is_not_one_series(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = telemetry(tmp_path / "t.csv")
    code, out, err = run(capsys, str(file))
    assert (code, out) == (2, "")
    assert "has 2 loops (quick, slow); add --by loop" in err
    code, out, _ = run(capsys, str(file), "--by", "loop", "--json")
    assert code == 0
    models = {model["loop"]: model for model in json.loads(out)["models"]}
    assert models["quick"]["a"] == pytest.approx(0.3, abs=0.03)
    assert models["slow"]["a"] == pytest.approx(0.8, abs=0.03)
    assert {model["align"] for model in models.values()} == {"next"}  # a command follows its row's measurement
    code, out, _ = run(capsys, str(file), "--by", "loop")
    assert code == 0
    assert "slow" in out
