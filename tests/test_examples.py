"""Every example runs and prints what stands beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.with_suffix(".out").exists()], ids=lambda path: path.stem
)
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    answer = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == example.with_suffix(".out").read_text()


def test_every_example_has_its_expected_output() -> None:
    assert [path.name for path in EXAMPLES if not path.with_suffix(".out").exists()] == []


def test_the_recording_is_the_one_that_its_program_makes() -> None:
    program = EXAMPLES[0].with_name("make_recording.py")
    answer = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert answer.stdout == program.with_name("recording.csv").read_text()
