"""Waiting for results: of threads, and for a limited time.

A future belongs to its event loop and may be used in that loop's thread only; when the result is there, its caller
may have been cancelled or the whole loop closed. `outcome_of`, `deliver` and `answer` handle that for every pool
of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


async def wait_at_most(awaitable: Awaitable[Result], timeout_s: float | None) -> Result:
    """Wait for the result; TimeoutError after `timeout_s` (None: wait without limit).

    `asyncio.wait_for` of Python 3.11 ignores a cancellation that comes together with the result: a cancelled task
    would go on for ever.
    """
    async with asyncio.timeout(timeout_s):
        return await awaitable


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
    # A future rejects the one, and its caller would wait for ever; the other would close the waiting coroutine.
    if isinstance(outcome, StopIteration | GeneratorExit):
        name = type(outcome).__name__
        outcome = RuntimeError(f"the call ended with {name}, which cannot be passed on").with_traceback(
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
