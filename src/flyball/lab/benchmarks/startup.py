"""How long `flyball --help` takes beside `python -c "import typer"`, and what it must not import."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flyball.lab.bench import BenchContext, Row

_HEAVY = ("numpy", "scipy")
_WHAT_HELP_IMPORTS = f"""
import sys
from flyball.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
print(" ".join(name for name in {_HEAVY} if name in sys.modules), file=sys.stderr)
"""


def run(context: BenchContext) -> Iterator[Row]:
    beside = Path(sys.executable).parent / "flyball"
    flyball = [str(beside)] if beside.exists() else [sys.executable, "-m", "flyball"]
    help_command = [*flyball, "--help"]
    typer_command = [sys.executable, "-c", "import typer"]
    ours, theirs = [], []
    for _ in range(10 if context.quick else 30):  # interleaved, so that both see the same machine
        ours.append(_seconds(help_command))
        theirs.append(_seconds(typer_command))
    yield context.row(
        "help",
        1e3 * statistics.median(ours),
        "ms",
        peer=1e3 * statistics.median(theirs),
        peer_name='python -c "import typer"',
        goal=1.5,
        better="lower",
    )
    answer = subprocess.run([sys.executable, "-c", _WHAT_HELP_IMPORTS], capture_output=True, text=True, check=True)
    imported = answer.stderr.split()
    context.note(f"  imported by --help: {' '.join(imported) or 'neither ' + ' nor '.join(_HEAVY)}")
    yield context.row("help imports numpy or scipy", float(len(imported)), "packages", goal=0, better="lower")


def _seconds(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
