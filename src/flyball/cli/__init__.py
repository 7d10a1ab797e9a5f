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
    "demo": ("demo", "Run the whole line on generated events."),
    "run": ("run", "Run a pipeline from a config file."),
    "identify": ("identify", "Recording of input and output → model, with evidence."),
    "design": ("design", "Model and specification → gains, verified."),
    "verify": ("verify", "Model and gains → certificate: accepted, fragile or unstable."),
    "controllers": ("controllers", "List controllers and wrappers, or show one."),
    "simulate": ("simulate", "Run a controller on a plant in the twin."),
    "config": ("config", "What a file of loops may hold, and whether yours is right."),
    "lab": ("lab", "Run experiments and write a report with plots."),
    "publish": ("publish", "Publish a file, standard input or generated load."),
    "consume": ("consume", "Take messages from a queue or a group."),
    "tune": ("tune", "Identify a live consumer, and write its config."),
    "broker": ("broker", "Start and stop real brokers on this machine, for trials."),
    "queues": ("queues", "List a broker's queues and logs."),
    "doctor": ("doctor", "What is installed, and what is missing for what."),
    "bench": ("bench", "Run benchmarks and print our figures beside the peers'."),
}


def _stub() -> None:
    """Stands for a command that was not asked for, so that the overview can name it."""


def _application(asked_for: str | None) -> typer.Typer:
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
        if name != asked_for:
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
    """The options of `flyball` itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake is one sentence on standard error and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked_for = next((word for word in given if not word.startswith("-")), None)
    try:
        sys.exit(_application(asked_for)(args=given, prog_name="flyball", standalone_mode=False) or 0)
    except FlyballError as error:
        _refuse(str(error))
    except TyperException as error:  # an option that is missing, unknown or not of its kind
        message = error.format_message()
        if _is_help(error):
            typer.echo(message, err=True)
            sys.exit(2)
        help_of = " ".join(["flyball", *([asked_for] if asked_for in COMMANDS else [])])
        _refuse(f"{message[:1].lower()}{message[1:].rstrip('.')}; see `{help_of} --help`")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:  # `flyball … | head` has read enough
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
