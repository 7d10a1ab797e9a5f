"""flyball controllers: list the catalogue, or show one controller with its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.output import JsonOption, note, print_json, table

if TYPE_CHECKING:
    from flyball.control.controllers.catalogue import Entry, Parameter


def command(
    name: Annotated[str | None, typer.Argument(help="Controller or wrapper to show (default: list all).")] = None,
    json: JsonOption = False,
) -> None:
    """List the controllers and wrappers, or show one with its parameters."""
    from flyball.consumer.policy.little import Little
    from flyball.control.controllers import catalogue
    from flyball.control.wrappers import describe_wrappers

    wrappers = describe_wrappers()
    consumers = (catalogue.entry_of("little", Little),)
    if name is None:
        controllers = catalogue.describe()
        if json:
            print_json(
                {
                    "controllers": [_document(e) for e in controllers],
                    "consumer_controllers": [_document(e) for e in consumers],
                    "wrappers": [_document(e) for e in wrappers],
                }
            )
            return
        typer.echo(table([(e.name, e.help) for e in controllers], ("controller", "")))
        typer.echo()
        typer.echo(table([(e.name, e.help) for e in consumers], ("consumer's", "")))
        typer.echo()
        typer.echo(table([(e.name, e.help) for e in wrappers], ("wrapper", "")))
        note("\nflyball controllers NAME shows the equation and the parameters of one of them.")
        return
    entry = next((e for e in (*consumers, *wrappers) if e.name == name), None) or _controller(
        name, [e.name for e in consumers], [e.name for e in wrappers]
    )
    if json:
        print_json(_document(entry))
        return
    typer.echo(f"{entry.name}: {entry.text}\n")
    if entry.parameters:
        typer.echo(table(list(_rows(entry.parameters)), ("parameter", "type", "default", "meaning")))


def _rows(parameters: tuple[Parameter, ...], above: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each parameter, those of a nested configuration below it."""
    for p in parameters:
        yield above + p.name, p.type, "required" if p.required else _format(p.default), p.meaning
        yield from _rows(p.parts, f"{above}{p.name}.")


def _controller(name: str, consumers: list[str], wrappers: list[str]) -> Entry:
    from flyball.control.controllers import catalogue
    from flyball.errors import InvalidValue

    try:
        return catalogue.describe(name)[0]
    except InvalidValue as error:
        raise InvalidValue(
            f"{error}; for consumers: {', '.join(consumers)}; wrappers: {', '.join(wrappers)}"
        ) from None


def _format(default: Any) -> str:
    return "none" if default is None else "none ()" if default == () else str(default)


def _document(entry: Entry) -> dict[str, Any]:
    return {"name": entry.name, "help": entry.help, "parameters": [_parameter(p) for p in entry.parameters]}


def _parameter(p: Parameter) -> dict[str, Any]:
    default = asdict(p.default) if is_dataclass(p.default) and not isinstance(p.default, type) else p.default
    plain = {"name": p.name, "type": p.type, "required": p.required, "default": default, "meaning": p.meaning}
    return {**plain, "parts": [_parameter(part) for part in p.parts]} if p.parts else plain
