"""What `flyball run` waits for: a source that fails is reported at once, and a signal ends every wait."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flyball.app.run import done_before, started


def test_a_source_that_fails_while_spark_starts_is_reported_at_once() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        starting: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # Spark takes its time

        async def feed() -> None:
            raise FileNotFoundError("no file 'events.jsonl'")

        with pytest.raises(FileNotFoundError):
            await started(starting, asyncio.create_task(feed()), said.append)
        assert not starting.done()
        return said

    (line,) = asyncio.run(scenario())
    assert "the source failed" in line
    assert "no file 'events.jsonl'" in line


def test_a_source_that_has_ended_before_spark_is_ready_is_no_failure() -> None:
    async def scenario() -> list[str]:
        said: list[str] = []
        loop = asyncio.get_running_loop()
        starting, feeding = loop.create_future(), loop.create_future()
        feeding.set_result(None)
        waiting = asyncio.create_task(started(starting, feeding, said.append))
        await asyncio.sleep(0)
        assert not waiting.done()
        starting.set_result(None)
        await waiting
        return said

    assert asyncio.run(scenario()) == []


def test_a_signal_ends_the_wait_for_work_that_does_not_end() -> None:
    async def scenario() -> bool:
        stop, pipeline_stopped = asyncio.Event(), threading.Event()
        draining = asyncio.create_task(asyncio.to_thread(_wait_for, pipeline_stopped))
        asyncio.get_running_loop().call_soon(stop.set)
        done = await done_before(draining, stop)
        assert not draining.done()
        pipeline_stopped.set()
        await draining
        return done

    assert not asyncio.run(scenario())


def test_work_that_ends_is_waited_for_and_its_failure_raised() -> None:
    async def scenario() -> bool:
        return await done_before(asyncio.create_task(asyncio.to_thread(_wait_for, _set_event())), asyncio.Event())

    assert asyncio.run(scenario())

    async def failing() -> None:
        raise ValueError("a sink failed")

    async def scenario_with_failure() -> None:
        await done_before(asyncio.create_task(failing()), asyncio.Event())

    with pytest.raises(ValueError, match="a sink failed"):
        asyncio.run(scenario_with_failure())


def _wait_for(event: threading.Event) -> None:
    event.wait()


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event
