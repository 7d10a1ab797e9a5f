"""flyball check: check a config file of any kind without running it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.output import JsonOption, note, print_json
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from pydantic import BaseModel

# the table that every file of a kind has → what the file is called, and the command that runs it
_KINDS = {
    "pipeline": ("pipeline", "flyball run {file}"),
    "consumer": ("consumer", "flyball consume --config {file}"),
    "loop": ("loops", "flyball.loops.config in a program"),
}


def command(
    file: Annotated[Path, typer.Argument(help="TOML file of a pipeline, a consumer or loops.")],
    json: JsonOption = False,
) -> None:
    """Check a config file of any kind without running it: print every mistake, and exit with 2 if there is one.

    Nothing is started, connected to or written. The module of a consumer's handler is not imported.
    """
    from flyball.loops.toml import ConfigError, check, read_toml

    data = read_toml(file)
    key = _kind_of(data, file)
    name, use = _KINDS[key]
    try:
        check(data, _model(key), str(file), file.parent)
    except ConfigError as error:
        if json:
            print_json({"file": str(file), "kind": name, "mistakes": error.mistakes})
        else:
            for mistake in error.mistakes:
                note(f"flyball: {mistake}")
        raise typer.Exit(2) from None
    if json:
        print_json({"file": str(file), "kind": name, "mistakes": []})
    else:
        typer.echo(f"{file}: {name}, no mistakes; use it with: {use.format(file=file)}")


def _kind_of(data: dict[str, Any], file: Path) -> str:
    for key in _KINDS:
        if key in data:
            return key
    for given in data:
        for near in difflib.get_close_matches(given, _KINDS, n=1):
            raise InvalidValue(f"{file}: there is no table {given}; did you mean {near}?")
    raise InvalidValue(f"{file}: is no config: it needs a table [pipeline], [consumer] or [[loop]]")


def _model(key: str) -> type[BaseModel]:
    if key == "pipeline":
        from flyball.app.config import RunConfig

        return RunConfig
    if key == "consumer":
        from flyball.consumer.config import ConsumerFile

        return ConsumerFile
    from flyball.loops.config import LoopsFile

    return LoopsFile
