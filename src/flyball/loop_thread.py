"""An event loop in a thread of its own, for synchronous code that calls coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from flyball.errors import FlyballError

Result = TypeVar("Result")


class LoopEnded(FlyballError, RuntimeError):
    """The event loop does not run: it was stopped, or this process is a fork of the one in which it runs."""


class LoopThread:
    """Runs until `stop`; its thread does not keep the interpreter alive.

    >>> loop = LoopThread("example")
    >>> loop.run(asyncio.sleep(0.0, "done"))
    'done'
    >>> loop.stop()
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._lock = threading.Lock()
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_foreign(self) -> bool:
        """This process is a fork, and the loop runs in its parent only."""
        return self._process != os.getpid()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run the coroutine on the loop and wait for its result; may be called from any other thread."""
        if self.is_foreign:
            work.close()
            raise LoopEnded(
                f"the event loop {self._name!r} runs in process {self._process}, not in its child {os.getpid()}"
            )
        with self._lock:
            if self._stopped:
                work.close()
                raise LoopEnded(f"the event loop {self._name!r} was stopped")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LoopEnded(f"the event loop {self._name!r} was stopped") from None

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function between two steps of the loop, so that it sees nothing half done.

        It is called at once where no step can come between: on the loop's own thread, and when the loop has ended.
        """

        async def work() -> Result:
            return function()

        if threading.current_thread() is not self._thread:
            with suppress(LoopEnded):
                return self.run(work())
        return function()

    def stop(self) -> None:
        """End the loop, the tasks that still run on it, and its thread; in a fork there is nothing to end."""
        if self.is_foreign:
            return
        with self._lock:
            first, self._stopped = not self._stopped, True
        if first:
            asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if first:
            self._loop.close()


async def _end_tasks() -> None:
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
