"""The errors that Flyball raises.

Every error derives from :class:`FlyballError` and from the builtin that fits. Its message is one sentence: what is
wrong, the invalid value, and what to do about it. The command line prints that sentence and exits with code 2; it
never shows a traceback for one of these.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class FlyballError(Exception):
    """Base of all errors that Flyball raises on purpose."""


class InvalidValue(FlyballError, ValueError):
    """A value that a user passed cannot be used; the message names it and says what would be valid."""


class MissingExtra(FlyballError, ImportError):
    """An optional package that this feature needs is not installed."""


DISTRIBUTION = "flyball-control"
"""What pip installs; the package that is imported and the command are called `flyball`."""


def install_command(*extras: str) -> str:
    """The command that adds optional dependency groups.

    >>> install_command("spark", "java")
    "pip install 'flyball-control[spark,java]'"
    """
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'" if extras else f"pip install {DISTRIBUTION}"


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, which comes with the optional dependency group `extra`.

    >>> require("json", "spark").__name__
    'json'
    >>> require("no_such_module", "spark")
    Traceback (most recent call last):
        ...
    flyball.errors.MissingExtra: this needs the package 'no_such_module': pip install 'flyball-control[spark]'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        # A broken installation of a package that is present must not be reported as a missing extra.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(
            f"this needs the package {module.split('.')[0]!r}: {install_command(extra)}", name=module
        ) from None
