"""The command `flyball`.

Each command is one file in this package, named in `COMMANDS` below, and imported only when it is called: the list
of commands must appear at once, whatever numpy, scipy or Spark take to load. A command file has either a
function `command` or, for a command with sub-commands, a Typer `app`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from flyball.errors import FlyballError

# name → (module in this package, one line of help), in the order in which a newcomer needs them
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Run the whole pipeline on generated events."),
    "run": ("run", "Run a pipeline from a config file."),
    "identify": ("identify", "Identify a model from a recording of input and output."),
    "design": ("design", "Design and verify controller gains for a model."),
    "verify": ("verify", "Verify controller gains for a model."),
    "controllers": ("controllers", "List controllers and wrappers, or show one."),
    "simulate": ("simulate", "Simulate a controller on a model of the plant."),
    "config": ("config", "Print the loop-config schema, or validate a file."),
    "lab": ("lab", "Run experiments and write reports with plots."),
    "publish": ("publish", "Publish a file, standard input or generated messages."),
    "consume": ("consume", "Consume messages from a queue or a log."),
    "tune": ("tune", "Identify a consumer or pipeline, and write a config."),
    "broker": ("broker", "Start and stop local brokers for trials."),
    "queues": ("queues", "List a broker's queues and logs."),
    "doctor": ("doctor", "Check which optional features can be used here."),
    "bench": ("bench", "Run benchmarks and compare with other programs."),
}


def _stub() -> None:
    """Placeholder of a command that is not called, so that the overview can list it."""


def _application(called: str | None) -> typer.Typer:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one sentence on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = next((word for word in words if not word.startswith("-")), None)
    try:
        sys.exit(_application(called)(args=words, prog_name="flyball", standalone_mode=False) or 0)
    except FlyballError as error:
        _refuse(str(error))
    except TyperException as error:  # an option that is missing, unknown or of the wrong type
        message = error.format_message()
        if _is_help(error):
            typer.echo(message, err=True)
            sys.exit(2)
        command = " ".join(["flyball", *([called] if called in COMMANDS else [])])
        _refuse(f"{message[:1].lower()}{message[1:].rstrip('.')}; see `{command} --help`")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # the reader, as in `flyball … | head`, has closed the pipe
        sys.stderr.close()
        sys.exit(0)


def _is_help(error: TyperException) -> bool:
    """Whether the error is the help text of a command that was called without any arguments.

    Typer keeps the class in a private module and recognises it by its name itself.
    """
    return type(error).__name__ == "NoArgsIsHelpError"


def _refuse(sentence: str) -> NoReturn:
    typer.echo(f"flyball: {sentence}", err=True)
    sys.exit(2)
