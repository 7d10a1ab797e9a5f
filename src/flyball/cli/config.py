"""flyball config: print the loop-config schema, or validate a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json, table

app = typer.Typer(
    help="Print the loop-config schema, or validate a file.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("schema")
def show_schema() -> None:
    """Print the JSON schema of a loop config, for editors and other programs."""
    from flyball.loops.config import schema

    print_json(schema())


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="TOML file with one [[loop]] for each loop.")],
    json: JsonOption = False,
) -> None:
    """Validate a loop config: print a summary, or one error and exit code 2."""
    from flyball.loops.config import LoopsFile, load_toml

    content = load_toml(file, LoopsFile)
    if json:
        print_json({"file": str(file), "loops": [_summary(loop) for loop in content.loop]})
        return
    rows = [tuple(_summary(loop).values()) for loop in content.loop]
    typer.echo(table(rows, header=tuple(_summary(content.loop[0]))))
    note(f"{file}: {len(rows)} loop{'s' if len(rows) > 1 else ''}, no errors")


def _summary(loop: object) -> dict[str, object]:
    from flyball.loops.config import LoopConfig

    assert isinstance(loop, LoopConfig)
    return {
        "name": loop.name,
        "mode": loop.mode,
        "goal": loop.goal,
        "period_s": loop.period_s,
        "limits": None if loop.limits is None else str(list(loop.limits)),
        "controller": repr(loop.wrapped_controller()),
        "verification": loop.loop(sensor=lambda: None, actuator=lambda _: None).verification,
    }
