"""An event loop in a thread: results and errors come back, from any thread, and the thread ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flyball.loop_thread import LoopEnded, LoopThread


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


def test_a_call_under_way_ends_with_the_loop_and_a_later_one_is_refused() -> None:
    loop = LoopThread("test-loop")
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(loop.run, asyncio.sleep(3600.0)) for _ in range(3)]
        loop.run(asyncio.to_thread(lambda: None))  # leaves a thread of the loop's executor
        while not all(call.running() for call in calls):
            pass
        for stopping in [pool.submit(loop.stop), pool.submit(loop.stop)]:
            stopping.result()
        for call in calls:
            with pytest.raises(LoopEnded, match="the event loop 'test-loop' was stopped"):
                call.result()
    with pytest.raises(LoopEnded, match="was stopped"):
        loop.run(_thread())
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("asyncio")]


def test_a_function_is_called_between_two_steps_or_at_once_where_there_are_none() -> None:
    loop = LoopThread("test-loop")
    name = loop.call(lambda: threading.current_thread().name)
    inner = loop.call(lambda: loop.call(lambda: threading.current_thread().name))
    assert name == inner == "test-loop"
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 // 0)
    loop.stop()
    assert loop.call(threading.current_thread) is threading.current_thread()
