"""The command `flyball` as a process, and called in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from flyball.cli import main

FLYBALL = [sys.executable, "-m", "flyball"]


def flyball(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*FLYBALL, *map(str, arguments)], input=stdin, capture_output=True)


def figures(run: subprocess.CompletedProcess[bytes]) -> Any:
    """Return the JSON document that a command printed."""
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


def exit_code(*arguments: str) -> int:
    """Call a command in this process."""
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Call a command in this process; return its exit code, output and errors."""
    code = exit_code(*map(str, arguments))
    out, err = capsys.readouterr()
    return code, out, err


def check_one_sentence(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], sentence: str) -> None:
    """Check that a command refuses its arguments in one sentence, and prints nothing else."""
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
