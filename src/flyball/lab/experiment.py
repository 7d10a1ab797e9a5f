"""Finds, runs and writes up experiments."""

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
    """What an experiment is given: its name, whether to be quick, the seed, and a place for its files."""

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
    """What an experiment found. `body` alternates paragraphs (Markdown), tables and names of figures.

    `data` is what a program wants to read: numbers, strings, lists and dictionaries only.
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
    """All experiments there are."""
    import flyball.lab.experiments as room

    return sorted(module.name for module in pkgutil.iter_modules(room.__path__))


def title(name: str) -> str:
    """The first line of an experiment's docstring."""
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
        raise InvalidValue(f"there is no experiment {name!r}; there are: {', '.join(names())}")
    return importlib.import_module(f"flyball.lab.experiments.{name}")


def write(report: Report, name: str, folder: Path, *, quick: bool, seed: int) -> Path:
    """Put the report down as Markdown with pictures, and its data as JSON; returns the Markdown file."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    parts = [f"# {report.title}"]
    for part in report.body:
        if isinstance(part, Table):
            parts.append(markdown_table(part))
        elif isinstance(part, Picture):
            save_figure(part.figure, place / f"{part.name}.svg")
            save_figure(part.figure, place / f"{part.name}.png")
            parts.append(f"![{part.caption}]({part.name}.svg)\n\n*{part.caption}*")
        else:
            parts.append(part.strip())
    again = f"flyball lab {name} --seed {seed}" + (" --quick" if quick else "")
    parts.append(f"Repeat with `{again}`.")
    path = place / "report.md"
    path.write_text("\n\n".join(parts) + "\n")
    document = {"experiment": name, "seed": seed, "quick": quick, **report.data}
    (place / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
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
