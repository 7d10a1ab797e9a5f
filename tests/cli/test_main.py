"""The command line as a whole: quick to list, and clear about mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flyball.cli import COMMANDS, main


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


STABLE = ("verify", "--a", "0.26", "--b", "59.73", "--controller", "pi", "--kp", "-0.0016", "--ki", "0.006")


def test_output_that_cannot_be_written_is_no_verdict() -> None:
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "flyball", *STABLE], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert run.returncode == 2
    assert run.stderr == "flyball: no space left on device; free space on the disk\n"


def test_a_closed_pipe_is_no_verdict() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "flyball", *STABLE], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert run.returncode == 141
    assert run.stderr == ""


def test_an_interrupt_while_modules_are_loaded_leaves_no_traceback() -> None:
    program = (
        "import signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from flyball.cli import main; main()\n"
    )
    run = subprocess.run([sys.executable, "-c", program, *STABLE], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@pytest.mark.parametrize("wanted", ["", "1"])
def test_an_unexpected_error_is_one_sentence_and_a_traceback_on_request(wanted: str) -> None:
    """The error: a module of the command is an unfinished file."""
    program = (
        "import sys; sys.modules['flyball.cli.verify'] = object()\n"  # neither an app nor a command
        "from flyball.cli import main; main()\n"
    )
    environment = {**os.environ, "FLYBALL_TRACEBACK": wanted}
    run = subprocess.run(
        [sys.executable, "-c", program, *STABLE], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 70
    last = run.stderr.splitlines()[-1]
    assert last.startswith("flyball: unexpected error, AttributeError: ")
    assert last.endswith("; FLYBALL_TRACEBACK=1 in the environment shows where")
    assert ("Traceback" in run.stderr) is bool(wanted)


def test_a_path_that_cannot_be_used_is_one_sentence() -> None:
    environment = {**os.environ, "FLYBALL_STATE": "/proc"}
    run = subprocess.run(
        [sys.executable, "-m", "flyball", "broker", "status"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("flyball: cannot use '/proc")
    assert len(run.stderr.splitlines()) == 1


PLANT = ("--a", "0.26", "--b", "59.73")
TUNE = ("tune", "sqlite:///x.db", "--queue", "q", "--goal", "rate=4")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("publish", "sqlite:///x.db", "q", "--count", "1", "--rate", "inf"),
            "--rate must be a finite number, got inf",
        ),
        (("publish", "sqlite:///x.db", "q", "--seconds", "inf"), "--seconds must be a finite number, got inf"),
        (("publish", "sqlite:///x.db", "q", "--count", "1", "--size", "300000000"), "invalid value for '--size'"),
        (("publish", "sqlite:///x.db", "q", "--file", "."), "cannot read '.': Is a directory"),
        (
            ("publish", "sqlite:///x.db", "q", "--count", "1", "--outbox", ""),
            "the outbox must be the path of a file",
        ),
        (("consume", "sqlite:///x.db", "q", "--idle", "inf"), "--idle must be a finite number, got inf"),
        (
            ("simulate", *PLANT, "--goal", "4", "--kp", "0", "--ki", "0", "--seed", "-1"),
            "invalid value for '--seed'",
        ),
        (
            ("verify", *PLANT, "--controller", "pi", "--kp", "1e308", "--ki", "1e308"),
            "--kp must be between -1e+50 and 1e+50, got '1e308'",
        ),
        (("config", "check", "deep.toml"), "deep.toml: its arrays or tables are nested too deeply"),
        (
            (*TUNE, "--handler", "os:environ"),
            "the handler 'os:environ' must be a function of one message, got an object of type _Environ",
        ),
        ((*TUNE, "--handler", "json:loads", "--out", "."), "cannot write '.': Is a directory"),
        ((*TUNE, "--handler", "json:loads", "--out", "/proc/x.toml"), "cannot write '/proc/x.toml': "),
    ],
)
def test_a_value_that_no_command_can_use_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.toml").write_text("x = " + "[" * 3000 + "]" * 3000)
    Path("x.toml").write_text("")
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith(f"flyball: {sentence}")


def test_closed_standard_input_is_one_sentence(tmp_path: Path) -> None:
    run = subprocess.run(
        f"{sys.executable} -m flyball publish sqlite:///x.db q --declare queue --file - <&-",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == "flyball: --file - needs standard input, which is closed\n"


def test_an_unstable_simulation_prints_no_warnings() -> None:
    run = flyball(
        "simulate", "--a", "1.5", "--b", "59.73", "--goal", "400", "--kp", "5", "--ki", "6", "--samples", "2000"
    )
    assert (run.returncode, run.stderr) == (0, "")
