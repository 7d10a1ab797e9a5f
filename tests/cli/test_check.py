"""flyball check: every mistake of any config at once, and nothing is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flyball.cli import main
from tests.cli.wrong_inputs import CONFIGS, to_toml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["check", *words])
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize(("kind", "name"), [("run", "pipeline"), ("consumer", "consumer"), ("loops", "loops")])
def test_a_correct_config_of_every_kind(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "good.toml"
    file.write_text(to_toml(CONFIGS[kind][1]))
    code, out, err = check(capsys, str(file))
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}: {name}, no mistakes; use it with: ")
    assert [path.name for path in tmp_path.iterdir()] == ["good.toml"]


def test_the_example_is_correct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("pipeline.toml", "sites.csv"):
        shutil.copy(EXAMPLES / name, tmp_path)
    assert check(capsys, str(tmp_path / "pipeline.toml"))[0] == 0


def test_all_mistakes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loops.toml"
    file.write_text(
        """
        [[loop]]
        name = "prefetch"
        gaol = 400.0
        period_s = "soon"
        mode = "auto"
        controller = { name = "pi", kp = 1.0, ki = 1.0 }
        """
    )
    code, out, err = check(capsys, str(file))
    assert (code, out) == (2, "")
    lines = [line.removeprefix(f"flyball: {file}: loop[prefetch].") for line in err.splitlines()]
    assert len(lines) == 3
    assert "there is no key loop[prefetch].gaol (here 400.0); did you mean goal?" in err
    assert any(line.startswith("period_s = 'soon': ") for line in lines)
    assert any(line.startswith("mode = 'auto': ") for line in lines)
    code, out, err = check(capsys, str(file), "--json")
    assert (code, err) == (2, "")
    assert len(json.loads(out)["mistakes"]) == 3


def test_a_misspelt_table_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[pipelin]\n")
    assert check(capsys, str(file))[2] == f"flyball: {file}: there is no table pipelin; did you mean pipeline?\n"
