"""The threads of blocking handlers: one that hangs is replaced, a call that never began costs none."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flyball.consumer.handler_threads import HandlerThreads
from tests.consumer.queues import until


def alive(others: set[threading.Thread]) -> int:
    """Handler threads, without those of other pools that are about to end."""
    return sum(thread.name == "flyball-handler" for thread in set(threading.enumerate()) - others)


def test_a_thread_is_replaced_for_a_call_that_hangs_and_not_for_one_that_never_began() -> None:
    async def scenario() -> None:
        others = set(threading.enumerate())
        workers, began, release = HandlerThreads(1), threading.Event(), threading.Event()

        def hang() -> None:
            began.set()
            release.wait()

        hanging = asyncio.create_task(workers.call(hang))
        waiting = [asyncio.create_task(workers.call(pytest.fail, "nobody waits for this call")) for _ in range(5)]
        await asyncio.to_thread(began.wait)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert alive(others) == 1
        hanging.cancel()
        await asyncio.wait([hanging])
        assert alive(others) == 2
        assert await workers.call(max, 1, 2) == 2  # by the new thread, after passing over the five
        release.set()
        await until(lambda: alive(others) == 1)  # the old one ends by itself
        workers.close()
        await until(lambda: alive(others) == 0)

    asyncio.run(scenario())
