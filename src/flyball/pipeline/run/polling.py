"""Waiting for what other threads, processes and Spark do."""

from __future__ import annotations

import time
from collections.abc import Callable

from flyball.brokers.port import BrokerError, may_pass
from flyball.errors import FlyballError

POLL_S = 0.05
"""How often it is looked."""


class PipelineStopped(FlyballError, RuntimeError):
    """The pipeline was stopped before it had done what a caller waits for; it continues when it is run again."""


def wait_until(reached: Callable[[], bool], check: Callable[[], None], *, every_s: float = POLL_S) -> None:
    """Return once `reached()`; `check` is called between two looks and raises where it is no use to wait on.

    While a broker that `reached` asks is away, nothing is reached.
    """
    while not _answer(reached):
        check()
        time.sleep(every_s)


def _answer(reached: Callable[[], bool]) -> bool:
    try:
        return reached()
    except BrokerError as error:
        if not may_pass(error):
            raise
        return False
