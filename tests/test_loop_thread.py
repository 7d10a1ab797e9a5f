"""An event loop in a thread: results and errors come back, from any thread, and the thread ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flyball.loop_thread import LoopThread


async def _thread() -> str:
    await asyncio.sleep(0.0)
    return threading.current_thread().name


async def _fail() -> None:
    raise KeyError("gone")


def test_coroutines_run_in_its_thread_whoever_asks() -> None:
    loop = LoopThread("test-loop")
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: loop.run(_thread()), range(20))) == {"test-loop"}
    with pytest.raises(KeyError, match="gone"):
        loop.run(_fail())
    loop.stop()
    assert "test-loop" not in {thread.name for thread in threading.enumerate()}
