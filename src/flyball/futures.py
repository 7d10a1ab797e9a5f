"""What a thread found out, brought to the coroutine that waits for it.

A future belongs to its event loop and may be touched in that loop's thread only; by the time an answer is there,
its caller may have been cancelled or the whole loop closed. Every pool of threads meets these three, here once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


def outcome_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or the exception that it ended with."""
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits, not to this thread
        return error


def deliver(future: asyncio.Future[Any], outcome: Any) -> None:
    """Settle a future with the outcome of a call; call it in the future's own thread."""
    if future.done():  # its caller was cancelled
        return
    if isinstance(outcome, StopIteration):  # a future refuses it, and its caller would wait for ever
        outcome = RuntimeError("the call ended with StopIteration, which cannot be passed on").with_traceback(
            outcome.__traceback__
        )
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def answer(futures: Sequence[asyncio.Future[Any]], outcomes: Sequence[Any]) -> None:
    """Settle futures of one event loop from another thread, all in one turn of the loop."""
    if not futures:
        return

    def settle() -> None:
        for future, outcome in zip(futures, outcomes, strict=True):
            deliver(future, outcome)

    with suppress(RuntimeError):  # the loop was closed: nobody is left to tell, the work itself is done
        futures[0].get_loop().call_soon_threadsafe(settle)
