"""flyball lab: run experiments and write reports with tables and pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from flyball.cli.output import JsonOption, check_out_folder, note, print_json, table


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments to run (default: all).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the reports.")] = Path("lab-reports"),
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer repetitions.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1,
    as_list: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    json: JsonOption = False,
) -> None:
    """Run experiments and write, for each, a report in Markdown with pictures and its data as JSON."""
    from flyball.errors import InvalidValue
    from flyball.lab import experiment

    known = experiment.names()
    if as_list:
        listed = {name: experiment.title(name) for name in known}
        print_json(listed) if json else typer.echo(table(list(listed.items())))
        return
    wanted = names or known
    for name in wanted:
        if name not in known:
            raise InvalidValue(f"unknown experiment {name!r}; choose from {', '.join(known)}")
    check_out_folder("--out", out)
    reports: dict[str, Any] = {}
    written: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="flyball-lab-") as scratch:
        for name in wanted:
            note(f"{name} …")
            workdir = Path(scratch) / name
            workdir.mkdir()
            report = experiment.run(name, quick=quick, seed=seed, workdir=workdir, note=note)
            path = experiment.write(report, name, out, quick=quick, seed=seed)
            reports[name] = {"title": report.title, "report": str(path), **report.data}
            written.append((name, str(path)))
    print_json(reports) if json else typer.echo(table(written, header=("experiment", "report")))
