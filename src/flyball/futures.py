"""Work of threads, and its results for the coroutines that wait for them.

A future belongs to its event loop and may be used in that loop's thread only; when the result is there, its caller
may have been cancelled or the whole loop closed. The three functions handle that for every pool of threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

from flyball.errors import InvalidValue

Result = TypeVar("Result")
Side = Literal["receive", "publish"]


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


class WorkerPool:
    """A few threads that do store work for a publisher; `run` awaits a call made by one of them.

    Receive work has non-preemptive priority, as in the publisher paper: a free worker begins waiting receive work
    first, and nothing that has begun is interrupted. So the more messages come in, the more of the pool serves
    them, and the finite receive buffer is the last to fill.
    """

    def __init__(self, workers: int = 2) -> None:
        if workers < 1:
            raise InvalidValue(f"workers must be an integer >= 1, got {workers!r}")
        self._calls: dict[Side, deque[Callable[[], None]]] = {"receive": deque(), "publish": deque()}
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"flyball-publisher-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, side: Side, call: Callable[..., Result], *arguments: Any) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def work() -> None:
            answer([future], [outcome_of(call, *arguments)])

        with self._changed:
            self._calls[side].append(work)
            self._changed.notify()
        return await future

    def close(self) -> None:
        """Let the workers finish what is queued, and wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        receive, publish = self._calls["receive"], self._calls["publish"]
        while True:
            with self._changed:
                while not receive and not publish:
                    if self._closed:
                        return
                    self._changed.wait()
                call = receive.popleft() if receive else publish.popleft()
            call()
