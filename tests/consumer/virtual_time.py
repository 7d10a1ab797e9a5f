"""An event loop on which time passes only while everybody waits: what a program does takes no time at all."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Where a selector would sleep until the next timer, the clock goes there at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)  # no timer: only a thread can wake the loop
        ready = super().select(0)
        if not ready and timeout > 0:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, Result], monkeypatch: pytest.MonkeyPatch) -> Result:
    """`asyncio.run` with `time.monotonic` and the loop's timers in virtual time."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        monkeypatch.setattr(time, "monotonic", runner.get_loop().time)
        return runner.run(main)
