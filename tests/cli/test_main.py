"""The command line as a whole: quick to list, and clear about mistakes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flyball.cli import COMMANDS


def flyball(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flyball", *arguments], capture_output=True, text=True, check=False
    )


def test_help_lists_every_command_without_loading_any() -> None:
    script = (
        "import sys; sys.argv = ['flyball', '--help']\n"
        "from flyball.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(f"  {name} " in run.stdout for name in COMMANDS)
    assert "..." not in run.stdout.partition("Commands:")[2], (
        "a line of help is cut off on a terminal of 80 columns"
    )
    assert not {"numpy", "scipy", "pydantic", "pyspark"} & set(json.loads(run.stderr.replace("'", '"')))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    run = flyball(name, "--help")
    assert run.returncode == 0
    assert run.stdout.startswith(f"Usage: flyball {name}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nope",), "no such command 'nope'"),
        (("--nope",), "no such option: --nope"),
        (("design", "--b", "3"), "missing option '--a'"),
        (("bench", "nope"), "unknown benchmark 'nope'; choose from "),
        (("bench", "loops", "--only", "x"), "benchmark 'loops' has no group 'x'; its groups: none"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments: tuple[str, ...], sentence: str) -> None:
    run = flyball(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith(f"flyball: {sentence}")
    assert len(run.stderr.splitlines()) == 1


def test_no_arguments_show_the_overview() -> None:
    run = flyball()
    assert run.returncode == 2
    assert "Commands:" in run.stderr
