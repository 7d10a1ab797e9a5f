"""The Typer application of `flyball`: the overview of the commands, and the command that is called."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from flyball.cli import COMMANDS
from flyball.errors import InvalidValue

_LARGEST = 10**18
"""Of an integer option: more than anything here can count, and small enough for every database and library."""


def run(words: Sequence[str]) -> int:
    """Run the command line `words` and return the exit code."""
    called = next((word for word in words if not word.startswith("-")), None)
    command: Any = get_command(make_application(called))
    if called in COMMANDS:
        _check_numbers_of(command.commands[called])
    try:
        # Not `command.main`: it ends the program with exit code 1, a verdict of `verify`, when a pipe is closed.
        with command.make_context("flyball", list(words)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as abort:
        raise KeyboardInterrupt from abort
    except TyperException as error:  # an option that is missing, unknown or of the wrong type
        message = error.format_message()
        if _is_help(error):
            typer.echo(message, err=True)
            return 2
        name = " ".join(["flyball", *([called] if called in COMMANDS else [])])
        raise InvalidValue(f"{message[:1].lower()}{message[1:].rstrip('.')}; see `{name} --help`") from None
    return 0


def _check_numbers_of(command: Any) -> None:
    """Let the command, or each of its sub-commands, refuse numbers that nothing can use."""
    for inner in getattr(command, "commands", {}).values():
        _check_numbers_of(inner)
    if command.callback is not None:
        command.callback = _with_usable_numbers(
            command.callback, {parameter.name: parameter.opts[0] for parameter in command.params}
        )


def _with_usable_numbers(callback: Callable[..., Any], options: dict[str, str]) -> Callable[..., Any]:
    def call(**values: Any) -> Any:
        for name, given in values.items():
            for value in given if isinstance(given, list) else (given,):
                _check_number(options[name], value)
        return callback(**values)

    return call


def _check_number(option: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"{option} must be a finite number, got {value:g}; omit it for the default")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise InvalidValue(f"{option} must be between {-_LARGEST} and {_LARGEST}, got {value}")


def _is_help(error: TyperException) -> bool:
    """Whether the error is the help text of a command that was called without any arguments.

    Typer keeps the class in a private module and recognises it by its name itself.
    """
    return type(error).__name__ == "NoArgsIsHelpError"


def _stub() -> None:
    """Placeholder of a command that is not called, so that the overview can list it."""


def make_application(called: str | None) -> typer.Typer:
    app = typer.Typer(
        name="flyball",
        help="Feedback control for message queues and Spark streams.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_overview)
    for name, (module_name, line) in COMMANDS.items():
        if name != called:
            app.command(name, help=line)(_stub)
            continue
        module = importlib.import_module(f"flyball.cli.{module_name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name, help=line)
        else:
            app.command(name, help=module.command.__doc__ or line)(module.command)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from flyball import __version__

        typer.echo(f"flyball {__version__}")
        raise typer.Exit


def _overview(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=_show_version
    ),
) -> None:
    """Options of `flyball` itself."""
