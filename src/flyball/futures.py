"""Results of threads, for the coroutines that wait for them.

A future belongs to its event loop and may be used in that loop's thread only; when the result is there, its caller
may have been cancelled or the whole loop closed. The three functions handle that for every pool of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


def outcome_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function; return its result, or the exception that it raised."""
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - it is raised in the waiting coroutine, not in this thread
        return error


def deliver(future: asyncio.Future[Any], outcome: Any) -> None:
    """Set a future to the outcome of a call; must run in the future's own thread."""
    if future.done():  # its caller was cancelled
        return
    if isinstance(outcome, StopIteration):  # a future rejects it, and its caller would wait for ever
        outcome = RuntimeError("the call ended with StopIteration, which cannot be passed on").with_traceback(
            outcome.__traceback__
        )
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def answer(futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
    """Set futures of one event loop from another thread, all in one iteration of the loop."""
    if not futures:
        return

    def deliver_all() -> None:
        for future, outcome in zip(futures, outcomes, strict=True):
            deliver(future, outcome)

    with suppress(RuntimeError):  # the loop was closed: no coroutine waits any more
        futures[0].get_loop().call_soon_threadsafe(deliver_all)
