"""The command `flyball`.

Each command is one file in this package, named in `COMMANDS` below, and imported only when it is called: the list
of commands must appear at once, whatever numpy, scipy or Spark take to load. A command file has either a
function `command` or, for a command with sub-commands, a Typer `app`.

This file imports next to nothing itself: from its first moment on, Ctrl-C ends the program without a traceback.
"""

from __future__ import annotations

import errno
import os
import sys

from flyball.errors import FlyballError

TYPE_CHECKING = False  # as in typing, which would be loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

# name → (module in this package, one line of help), in the order in which a newcomer needs them
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Run the whole pipeline on generated events."),
    "run": ("run", "Run a pipeline from a config file."),
    "check": ("check", "Check a config file of any kind without running it."),
    "identify": ("identify", "Identify a model from a recording of input and output."),
    "design": ("design", "Design and verify controller gains for a model."),
    "verify": ("verify", "Verify controller gains for a model."),
    "controllers": ("controllers", "List controllers and wrappers, or show one."),
    "simulate": ("simulate", "Simulate a controller on a model of the plant."),
    "config": ("config", "Print the loop-config schema, or validate a file."),
    "lab": ("lab", "Run experiments and write reports with plots."),
    "publish": ("publish", "Publish a file, standard input or generated messages."),
    "consume": ("consume", "Consume messages from a queue or a log."),
    "outbox": ("outbox", "List, replay or delete messages that a target refused."),
    "tune": ("tune", "Identify a consumer or pipeline, and write a config."),
    "broker": ("broker", "Start and stop local brokers for trials."),
    "assign": ("assign", "Assign the queues of a group to its members."),
    "groups": ("groups", "Show who reads which queue of a group, and what would change."),
    "cluster": ("cluster", "Create and watch a clustered queue, and empty its nodes."),
    "queues": ("queues", "List a broker's queues and logs."),
    "doctor": ("doctor", "Check which optional features can be used here."),
    "bench": ("bench", "Run benchmarks and compare with other programs."),
}

# What to do about an error of the system that a user can correct; any other one is unexpected.
_HINTS = {
    errno.EACCES: "check the permissions",
    errno.EPERM: "check the permissions",
    errno.EROFS: "choose a folder that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "give a file, not a folder",
    errno.EEXIST: "check the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "check the symbolic links",
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space on the disk",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs, or raise the system's limit on open files",
}
_MISTAKE, _UNEXPECTED, _INTERRUPTED, _PIPE_CLOSED = 2, 70, 130, 141
_TRACEBACK = "FLYBALL_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    A user's mistake, and an error of the system that a user can correct, is one sentence on standard error and
    exit code 2; an unexpected error is one sentence and exit code 70. Ctrl-C is exit code 130, a reader that
    closed the pipe, as in `flyball … | head`, is 141: the usual ones of programs that such a signal ends.
    """
    code = _UNEXPECTED
    try:
        from flyball.cli.application import run

        code = run(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:
        code = _PIPE_CLOSED
    except FlyballError as error:
        code = _report(str(error), _MISTAKE)
    except OSError as error:
        code = _report_unexpected(error) if error.errno not in _HINTS else _report(_sentence(error), _MISTAKE)
    except Exception as error:  # noqa: BLE001 (the last resort)
        code = _report_unexpected(error)
    finally:
        _discard_unwritten()
    sys.exit(code)


def _sentence(error: OSError) -> str:
    reason = error.strerror or str(error)
    hint = _HINTS[error.errno or 0]
    if error.filename is None:
        return f"{reason[:1].lower()}{reason[1:]}; {hint}"
    return f"cannot use {os.fsdecode(error.filename)!r}: {reason}; {hint}"


def _report_unexpected(error: Exception) -> int:
    words = " ".join(str(error).split())
    name = type(error).__name__ + (f": {words}" if words else "")
    return _report(f"unexpected error, {name}; {_TRACEBACK}=1 in the environment shows where", _UNEXPECTED)


def _report(sentence: str, code: int) -> int:
    """Print the sentence, after the traceback of the present error if it is wanted, and return the exit code."""
    try:
        if os.environ.get(_TRACEBACK):
            import traceback

            traceback.print_exc()
        print(f"flyball: {sentence}", file=sys.stderr)  # noqa: T201 (typer may not be loaded)
    except OSError:  # standard error is closed or full: the exit code says it
        pass
    return code


def _discard_unwritten() -> None:
    """Discard what cannot be written: Python writes it again at the end, and would change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
