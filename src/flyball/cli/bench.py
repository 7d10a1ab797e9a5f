"""flyball bench: our figures beside those of other programs, measured in the same run."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, check_out_folder, note, print_json, table
from flyball.cli.signals import sigterm_as_exit


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run (default: all).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure one representative per figure.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Run only this group of cases (may be repeated; see --list)."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 1,
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("bench-results"),
    as_list: Annotated[bool, typer.Option("--list", help="List the benchmarks and exit.")] = False,
    json: JsonOption = False,
) -> None:
    """Run benchmarks and print our figures beside those of other programs."""
    from flyball.errors import InvalidValue
    from flyball.lab import bench

    known = bench.names()
    if as_list:
        groups = {name: list(bench.groups(name)) for name in known}
        if json:
            print_json(groups)
        else:
            typer.echo(
                "\n".join(f"{name}: {', '.join(parts)}" if parts else name for name, parts in groups.items())
            )
        return
    wanted = names or known
    for name in wanted:
        if name not in known:
            raise InvalidValue(f"unknown benchmark {name!r}; choose from {', '.join(known)}")
        for group in only or []:
            if group not in bench.groups(name):
                choices = ", ".join(bench.groups(name)) or "none"
                raise InvalidValue(f"benchmark {name!r} has no group {group!r}; its groups: {choices}")
    check_out_folder("--results", results)
    rows: list[bench.Row] = []
    try:
        with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="flyball-bench-") as scratch:
            for name in wanted:
                note(f"{name} …")
                workdir = Path(scratch) / name
                workdir.mkdir()
                for row in bench.run(name, quick=quick, seed=seed, workdir=workdir, note=note, only=only or ()):
                    rows.append(row)
                    note(f"  {row.case}: {row.ours:.4g} {row.unit}" + _beside(row))
    finally:  # keep what was measured before a failure
        if rows:
            note(f"results saved in {bench.record(rows, results, quick=quick, seed=seed)}")
    if json:
        print_json([asdict(row) for row in rows])
        return
    header = ("bench", "case", "ours", "peer", "peer name", "unit", "ratio", "goal", "met")
    typer.echo(table([tuple(asdict(row).values()) for row in rows], header=header))


def _beside(row: object) -> str:
    ratio, name, goal = (getattr(row, field) for field in ("ratio", "peer_name", "goal"))
    beside = "" if ratio is None else f", {ratio:.3g} × {name}"
    return beside + ("" if goal is None else f" (goal {goal})")
