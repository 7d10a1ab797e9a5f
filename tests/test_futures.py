"""What threads found out reaches those who wait, whatever became of them meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flyball.futures import answer, outcome_of, wait_at_most


def _in_thread(futures: list[asyncio.Future[object]], outcomes: list[object]) -> None:
    thread = threading.Thread(target=answer, args=(futures, outcomes))
    thread.start()
    thread.join()


def test_results_and_failures_reach_their_own_callers() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        whole, failed = loop.create_future(), loop.create_future()
        _in_thread([whole, failed], [outcome_of(divmod, 7, 2), outcome_of(divmod, 7, 0)])
        assert await whole == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await failed

    asyncio.run(scenario())


def test_a_cancelled_caller_does_not_keep_the_others_from_their_answers() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        gone, waiting = loop.create_future(), loop.create_future()
        gone.cancel()
        _in_thread([gone, waiting], [1, 2])
        assert await waiting == 2

    asyncio.run(scenario())


def test_a_closed_loop_is_nobody_to_tell() -> None:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[object] = loop.create_future()
    loop.close()
    answer([future], [1])
    assert not future.done()


def test_an_iterator_that_ran_out_does_not_leave_its_caller_waiting() -> None:
    async def scenario() -> None:
        future = asyncio.get_running_loop().create_future()
        _in_thread([future], [outcome_of(next, iter(()))])
        with pytest.raises(RuntimeError, match="StopIteration"):
            await future

    asyncio.run(scenario())


def test_a_cancellation_that_comes_with_the_result_is_not_lost() -> None:
    async def scenario() -> None:
        happened = asyncio.Event()
        waiting = asyncio.create_task(wait_at_most(happened.wait(), 60.0))
        await asyncio.sleep(0)
        happened.set()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())


def test_the_wait_ends_after_its_time() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(wait_at_most(asyncio.Event().wait(), 0.001))
