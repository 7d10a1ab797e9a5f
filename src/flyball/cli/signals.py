"""SIGTERM as an ordinary end of the program."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM end the program as Ctrl-C does, so that servers are stopped and file systems unmounted."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
