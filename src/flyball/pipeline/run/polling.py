"""Waiting for what other threads, processes and Spark do."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.05
"""How often it is looked."""


def wait_until(reached: Callable[[], bool], check: Callable[[], None], *, every_s: float = POLL_S) -> None:
    """Return once `reached()`; `check` is called between two looks and raises where it is no use to wait on."""
    while not reached():
        check()
        time.sleep(every_s)
