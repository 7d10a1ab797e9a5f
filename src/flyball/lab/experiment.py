"""Find and run experiments, and write their reports."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.errors import InvalidValue
from flyball.lab.plotting import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ExperimentContext:
    """Input of an experiment: its name, whether to be quick, the seed, and a folder for its files."""

    name: str
    quick: bool
    seed: int
    workdir: Path
    note: Callable[[str], None]


@dataclass(frozen=True)
class Table:
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Report:
    """Result of an experiment. `body` has paragraphs (Markdown), tables and pictures.

    `data` is for programs: numbers, strings, lists and dictionaries only.
    """

    title: str
    body: Sequence[str | Table | Picture]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    name: str
    caption: str
    figure: Figure


def names() -> list[str]:
    """Names of all experiments."""
    from flyball.lab import experiments

    return sorted(module.name for module in pkgutil.iter_modules(experiments.__path__))


def title(name: str) -> str:
    """First line of an experiment's docstring."""
    return (_module(name).__doc__ or name).strip().split("\n")[0]


def run(
    name: str, *, quick: bool, seed: int, workdir: Path, note: Callable[[str], None] = lambda _: None
) -> Report:
    """Run one experiment by name."""
    report = _module(name).run(ExperimentContext(name, quick, seed, workdir, note))
    assert isinstance(report, Report)
    return report


def _module(name: str) -> Any:
    if name not in names():
        raise InvalidValue(f"unknown experiment {name!r}; choose from {', '.join(names())}")
    return importlib.import_module(f"flyball.lab.experiments.{name}")


def write(report: Report, name: str, folder: Path, *, quick: bool, seed: int) -> Path:
    """Write the report as Markdown with pictures, and its data as JSON; return the path of the Markdown file."""
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    parts = [f"# {report.title}"]
    for part in report.body:
        if isinstance(part, Table):
            parts.append(markdown_table(part))
        elif isinstance(part, Picture):
            save_figure(part.figure, target / f"{part.name}.svg")
            save_figure(part.figure, target / f"{part.name}.png")
            parts.append(f"![{part.caption}]({part.name}.svg)\n\n*{part.caption}*")
        else:
            parts.append(part.strip())
    command = f"flyball lab {name} --seed {seed}" + (" --quick" if quick else "")
    parts.append(f"Repeat with `{command}`.")
    path = target / "report.md"
    path.write_text("\n\n".join(parts) + "\n")
    document = {"experiment": name, "seed": seed, "quick": quick, **report.data}
    (target / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    return path


def markdown_table(table: Table) -> str:
    """
    >>> print(markdown_table(Table(("name", "mean"), [("PI", 397.19)])))
    | name | mean |
    |---|---|
    | PI | 397.2 |
    """
    ruler = "|" + "---|" * len(table.header)
    header, *rows = ("| " + " | ".join(map(_cell, line)) + " |" for line in (table.header, *table.rows))
    return "\n".join([header, ruler, *rows])


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
