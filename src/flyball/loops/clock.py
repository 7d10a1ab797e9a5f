"""Time, as loops see it: passed in, so that the same runner works on the wall clock and in virtual time.

`flyball.testing.VirtualClock` is the other implementation of :class:`Clock`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

from flyball.futures import answer, outcome_of
from flyball.steady_clock import SteadyClock


class Clock(Protocol):
    """The clock that a runner needs: wall time, or virtual time in tests."""

    def now(self) -> float:
        """Seconds; never goes back."""
        ...

    async def sleep_until(self, time: float) -> None:
        """Return once `now()` is at least `time`."""
        ...

    async def call_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function that may block without stopping everything else that waits on this clock."""
        ...


class WallClock(SteadyClock):
    """Seconds since 1970: a loop's `dt` must not jump when the machine's clock is set, and telemetry has dates."""

    async def sleep_until(self, time: float) -> None:
        while (rest := time - self.now()) > 0:
            await asyncio.sleep(rest)

    async def call_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Each call gets a daemon thread: a call that never returns delays neither other calls nor the exit.

        (A shared pool would fill up with hung calls, and the interpreter waits for a pool's threads.)
        The caller keeps at most one call under way for a sensor or actuator, which bounds the threads.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def work() -> None:
            answer([future], [outcome_of(function, *arguments)])

        threading.Thread(target=work, name="flyball-blocking-call", daemon=True).start()
        return await future
