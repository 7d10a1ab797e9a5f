"""Virtual time for asyncio: a day of loops runs in a moment, and every run is the same run.

It needs one change: an event loop asks its selector to wait until the next timer is due or a file becomes
readable. Ours looks at the files without waiting, and where nothing is ready it *sets the time* to the next
timer instead. So time advances exactly when all tasks wait, and `asyncio.sleep`, `asyncio.timeout` and
`asyncio.wait(timeout=…)` inside the run are virtual, too.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from flyball.errors import FlyballError

T = TypeVar("T")


class Deadlock(FlyballError, RuntimeError):
    """All tasks wait, and no timer will ever wake one: on a wall clock the program would hang for ever."""


class VirtualClock:
    """A clock whose time passes only while everybody waits.

    >>> clock = VirtualClock()
    >>> async def worker(name: str, pause_s: float) -> list[str]:
    ...     seen = []
    ...     for _ in range(2):
    ...         await clock.sleep_until(clock.now() + pause_s)
    ...         seen.append(f"{name}@{clock.now():g}")
    ...     return seen
    >>> async def both() -> list[list[str]]:
    ...     return list(await asyncio.gather(worker("a", 3600), worker("b", 5000)))
    >>> clock.run(both())
    [['a@3600', 'a@7200'], ['b@5000', 'b@10000']]
    """

    def __init__(self, start: float = 0.0) -> None:
        self._start = start
        self._elapsed = 0.0

    def now(self) -> float:
        return self._start + self._elapsed

    async def sleep_until(self, time: float) -> None:
        while time > self.now():
            await asyncio.sleep(time - self.now())

    async def call_blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run the function at once: threads would make the order of events depend on the machine."""
        return function(*arguments)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Like `asyncio.run`, in virtual time. The clock keeps its time from one run to the next."""
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(main)

    def _advance(self, seconds: float) -> None:
        """Asyncio holds a timer due once the time is *beyond* it, give or take a nanosecond.

        Far from zero a nanosecond is lost in rounding, so that the time must be nudged beyond the timer; for the
        same reason the event loop counts from the start of the clock, where numbers are small.
        """
        self._elapsed += seconds
        if self._elapsed + 1e-9 == self._elapsed:
            self._elapsed = math.nextafter(self._elapsed, math.inf)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        super().__init__(_VirtualSelector(clock))

    def time(self) -> float:
        return self._clock._elapsed


class _VirtualSelector(selectors.BaseSelector):
    """A real selector that moves the clock where a real one would wait."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(
                "every task waits for something that nobody will send, at virtual time "
                f"{self._clock.now():g} s; wake one of them by a timer or an event"
            )
        self._clock._advance(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()
