"""Virtual time passes only while all tasks wait, and the same program gives the same run."""

from __future__ import annotations

import asyncio

import pytest

from flyball.testing.clock import Deadlock, VirtualClock


def test_time_stands_still_while_a_task_works() -> None:
    clock = VirtualClock(start=100.0)

    async def main() -> list[float]:
        seen = [clock.now()]
        for _ in range(1000):
            await asyncio.sleep(0)
        seen.append(clock.now())
        await clock.sleep_until(160.0)
        seen.append(clock.now())
        await clock.sleep_until(5.0)  # past: returns at once
        seen.append(clock.now())
        return seen

    assert clock.run(main()) == [100.0, 100.0, 160.0, 160.0]
    assert clock.now() == 160.0


def test_sleepers_wake_in_order() -> None:
    clock = VirtualClock()
    order: list[tuple[float, str]] = []

    async def sleeper(name: str, until: float) -> None:
        await clock.sleep_until(until)
        order.append((clock.now(), name))

    async def main() -> None:
        await asyncio.gather(sleeper("c", 3.0), sleeper("a", 1.0), sleeper("b", 2.0), sleeper("a2", 1.0))

    clock.run(main())
    assert order == [(1.0, "a"), (1.0, "a2"), (2.0, "b"), (3.0, "c")]


def test_asyncios_own_timers_are_virtual() -> None:
    clock = VirtualClock()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400):
                await asyncio.Event().wait()
        return clock.now()

    assert clock.run(main()) == pytest.approx(86_400)


def test_many_small_sleeps_do_not_drift() -> None:
    clock = VirtualClock(start=1.7e9)

    async def main() -> None:
        for k in range(1, 5001):
            await clock.sleep_until(1.7e9 + k * 0.1)

    clock.run(main())
    assert clock.now() == pytest.approx(1.7e9 + 500.0, abs=1e-6)


def test_a_century_passes() -> None:
    clock = VirtualClock()

    async def main() -> None:
        for year in range(1, 101):
            await clock.sleep_until(year * 31_557_600.0 + 0.1)

    clock.run(main())
    assert clock.now() == pytest.approx(3_155_760_000.1)


def test_waiting_for_ever_is_an_error_and_not_a_hang() -> None:
    clock = VirtualClock()

    async def main() -> None:
        await clock.sleep_until(7.0)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="virtual time 7 s"):
        clock.run(main())


def test_blocking_calls_run_in_order() -> None:
    clock = VirtualClock()

    async def main() -> int:
        return int(await clock.call_blocking(max, 3, 5))

    assert clock.run(main()) == 5
