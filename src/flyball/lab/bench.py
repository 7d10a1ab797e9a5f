"""Find, run and record benchmarks."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from flyball.errors import InvalidValue

Better = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` is ours / peer; `goal` is a bound on that ratio or, without a peer, on ours."""

    bench: str
    case: str
    ours: float
    peer: float | None
    peer_name: str | None
    unit: str
    ratio: float | None
    goal: str | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class BenchContext:
    """Input of a benchmark: its name, whether to be quick, the seed, and a folder for its files."""

    bench: str
    quick: bool
    seed: int
    workdir: Path
    note: Callable[[str], None]
    only: frozenset[str] = frozenset()
    """the groups of cases to run; empty: all"""

    def wants(self, group: str) -> bool:
        return not self.only or group in self.only

    def row(
        self,
        case: str,
        ours: float,
        unit: str,
        *,
        peer: float | None = None,
        peer_name: str | None = None,
        goal: float | None = None,
        better: Better = "lower",
    ) -> Row:
        """Make a row with its verdict; the goal is a bound on the ratio, or on `ours` if there is no peer."""
        ratio = ours / peer if peer else None
        judged = ours if ratio is None else ratio
        met = None if goal is None else (judged <= goal if better == "lower" else judged >= goal)
        sign = "<=" if better == "lower" else ">="
        return Row(
            bench=self.bench,
            case=case,
            ours=ours,
            peer=peer,
            peer_name=peer_name,
            unit=unit,
            ratio=ratio,
            goal=None if goal is None else f"{sign} {goal:g}",
            met=met,
        )


def names() -> list[str]:
    """Names of all benchmarks."""
    from flyball.lab import benchmarks

    return sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))


def groups(name: str) -> tuple[str, ...]:
    """Groups of cases that can be run by themselves; empty if the benchmark has none."""
    return tuple(getattr(_module(name), "GROUPS", ()))


def run(
    name: str,
    *,
    quick: bool,
    seed: int,
    workdir: Path,
    note: Callable[[str], None] = lambda _: None,
    only: Collection[str] = (),
) -> Iterator[Row]:
    """Run one benchmark, or some of its groups of cases, and yield its rows as they are measured."""
    yield from _module(name).run(BenchContext(name, quick, seed, workdir, note, frozenset(only)))


def _module(name: str) -> ModuleType:
    if name not in names():
        raise InvalidValue(f"unknown benchmark {name!r}; choose from {', '.join(names())}")
    return importlib.import_module(f"flyball.lab.benchmarks.{name}")


def record(rows: list[Row], folder: Path, *, quick: bool, seed: int) -> Path:
    """Save results with what is needed to compare them: commit, seed, machine."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"{stamp}.json"
    document = {
        "commit": _commit(),
        "seed": seed,
        "quick": quick,
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def _commit() -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
