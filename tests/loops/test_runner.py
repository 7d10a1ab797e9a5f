"""Many loops on one clock: isolation, lateness, storage, and agreement with the twin."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.pi import Pi
from flyball.control.models import first_order
from flyball.control.step import ReasonCode
from flyball.errors import InvalidValue
from flyball.loops.loop import Loop
from flyball.loops.policy import Policy
from flyball.loops.runner import Runner, run
from flyball.loops.telemetry.memory import MemorySink
from flyball.store import LoopStates, SqliteDatabase
from flyball.testing.clock import VirtualClock
from flyball.twin.engine import Twin, TwinLoop
from flyball.twin.plants import ArxPlant

MODEL = first_order(0.26, 59.73)
PI = Pi(kp=-0.0016, ki=0.0060)


def _loop(name: str, clock: VirtualClock, *, plant: ArxPlant | None = None, **more: Any) -> Loop:
    plant = plant or ArxPlant(MODEL, command=1.0, period_s=more.get("period_s", 1.0))
    options: dict[str, Any] = {
        "sensor": lambda: plant.measure(clock.now()),
        "actuator": lambda command: plant.apply(command, clock.now()),
        "controller": PI,
        "goal": 400.0,
        "limits": (1.0, 360.0),
        "mode": "on",
    }
    return Loop(name, **(options | more))


def test_twin_and_live_runner_give_the_same_records() -> None:
    def plant() -> ArxPlant:
        return ArxPlant(MODEL, command=1.0, noise=30.0, period_s=0.1, rng=np.random.default_rng(7))

    clock = VirtualClock()
    live = _loop("rate", clock, plant=plant(), period_s=0.1, guard=None)
    runner = run([live], samples=200, clock=clock)
    twin = Twin()
    simulated = twin.add(TwinLoop(Policy("rate", PI, 0.1, (1.0, 360.0)), plant(), 400.0, command=1.0))
    twin.run(samples=200)
    assert len(runner.records("rate")) == 200
    assert runner.records("rate") == simulated.records


def test_the_same_seed_gives_the_same_telemetry() -> None:
    def once() -> list[Any]:
        clock = VirtualClock()
        rng = np.random.default_rng(3)
        loops = [
            _loop("a", clock, plant=ArxPlant(MODEL, command=1.0, noise=20.0, rng=rng)),
            _loop("b", clock, plant=ArxPlant(MODEL, command=1.0, noise=20.0, rng=rng, period_s=0.7), period_s=0.7),
        ]
        return run(loops, samples=50, clock=clock).records()

    assert once() == once()


def test_loops_of_several_periods_are_all_served() -> None:
    clock = VirtualClock()
    runner = run([_loop("slow", clock, period_s=5.0), _loop("fast", clock, period_s=0.5)], samples=4, clock=clock)
    assert [record.time for record in runner.records("slow")] == [0.0, 5.0, 10.0, 15.0]
    assert [record.time for record in runner.records("fast")] == [0.0, 0.5, 1.0, 1.5]


def _raises(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


async def _never(*_: Any) -> float:
    await asyncio.Event().wait()
    return 0.0


@pytest.mark.parametrize(
    ("broken", "words", "code"),
    [
        ({"sensor": _raises(OSError("gone"))}, "the sensor raised OSError: gone", ReasonCode.SENSOR_FAILED),
        (
            {"actuator": _raises(OSError("jammed"))},
            "the actuator raised OSError: jammed: it keeps its last value",
            ReasonCode.ACTUATOR_FAILED,
        ),
        ({"sensor": _never}, "has not answered for", ReasonCode.OVERDUE),
        ({"actuator": _never}, "has not answered for", ReasonCode.OVERDUE),
        (
            {"sensor": lambda: "many"},
            "raised TypeError: 'many' is not a number",
            ReasonCode.SENSOR_FAILED,
        ),
        ({"sensor": lambda: float("nan")}, "the measurement is nan", ReasonCode.HELD_INVALID_SAMPLE),
        ({"sensor": lambda: None}, "no measurement", ReasonCode.HELD_NO_MEASUREMENT),
        ({"actuator": lambda _: True}, "it returned True, not the applied value", ReasonCode.ACTUATOR_FAILED),
    ],
)
def test_a_broken_loop_does_not_disturb_the_others(broken: dict[str, Any], words: str, code: ReasonCode) -> None:
    def runner(with_broken: bool) -> Runner:
        clock = VirtualClock()
        loops = [_loop("good", clock), *([_loop("bad", clock, guard=None, **broken)] * with_broken)]
        return run(loops, samples=30, clock=clock)

    alone, together = runner(False), runner(True)
    bad: list[Any] = together.records("bad")
    assert together.records("good") == alone.records("good")
    seen = {(record.code, record.reason) for record in bad}
    assert any(record.code is code and words in record.reason for record in bad), seen
    assert all(record.command is None or 1.0 <= record.command <= 360.0 for record in bad)


def test_a_hung_coroutine_is_cancelled_and_tried_again() -> None:
    clock = VirtualClock()
    calls: list[float] = []

    async def sensor() -> float:
        calls.append(clock.now())
        if len(calls) == 1:
            await asyncio.Event().wait()
        return 400.0

    loop = _loop("rate", clock, sensor=sensor)
    runner = run([loop], samples=15, clock=clock)
    assert calls == [0.0, 11.0, 12.0, 13.0, 14.0]
    assert [record.measurement for record in runner.records("rate")][-1] == 400.0


def test_a_late_sample_counts_at_the_time_it_came() -> None:
    clock = VirtualClock()

    async def sensor() -> float:
        await asyncio.sleep(0.25)
        return 390.0

    runner = run([_loop("rate", clock, sensor=sensor)], samples=3, clock=clock)
    assert [record.time for record in runner.records("rate")] == pytest.approx([0.25, 1.25, 2.25])
    assert all(record.command is not None for record in runner.records("rate"))


def test_overrun_ticks_are_missed_and_counted() -> None:
    clock = VirtualClock()

    async def block_the_loop() -> None:
        await clock.sleep_until(2.5)
        clock._advance(3.2)  # the process stood still from 2.5 to 5.7

    async def main() -> Runner:
        runner = Runner([_loop("rate", clock)], clock=clock)
        await asyncio.gather(runner.run(samples=6), block_the_loop())
        return runner

    records = clock.run(main()).records("rate")
    assert [(r.time, r.missed) for r in records] == [
        (0.0, 0),
        (1.0, 0),
        (2.0, 0),
        (pytest.approx(5.7), 3),
        (6.0, 0),
        (7.0, 0),
    ]


def test_the_applied_value_is_what_the_actuator_says() -> None:
    clock = VirtualClock()
    loop = _loop("rate", clock, sensor=lambda: 100.0, actuator=lambda command: min(command, 2.0), guard=None)
    runner = run([loop], samples=10, clock=clock)
    assert [record.applied for record in runner.records()][-1] == 2.0
    assert loop.command == 2.0
    # no wind-up: the proposed command never runs away from what was applied
    proposed: list[Any] = [record.proposed for record in runner.records()]
    assert max(proposed) < 2.0 + 0.0060 * 300.0 + 1e-9


def test_advise_and_shadow_never_call_the_actuator() -> None:
    clock = VirtualClock()
    for mode in ("advise", "shadow"):
        called: list[float] = []
        loop = _loop("rate", clock, mode=mode, actuator=called.append)
        records = run([loop], samples=5, clock=clock).records()
        assert called == []
        assert all(record.proposed is not None for record in records)


def test_loops_come_and_go_while_running() -> None:
    clock = VirtualClock()

    async def main() -> Runner:
        runner = Runner([_loop("first", clock)], clock=clock)
        running = asyncio.create_task(runner.run())
        await clock.sleep_until(2.5)
        runner.add(_loop("second", clock, period_s=0.5))
        with pytest.raises(InvalidValue, match="must be unique, got 'second' twice"):
            runner.add(_loop("second", clock))
        await clock.sleep_until(4.2)
        assert runner.remove("first").name == "first"
        await clock.sleep_until(6.2)
        runner.stop()
        await running
        return runner

    runner = clock.run(main())
    assert [record.time for record in runner.records("first")] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [record.time for record in runner.records("second")] == [2.5 + 0.5 * k for k in range(8)]
    with pytest.raises(InvalidValue, match="there is no loop 'third'; there are: second"):
        runner.remove("third")


def test_goal_gains_and_freeze_change_while_running() -> None:
    clock = VirtualClock()
    loop = _loop("rate", clock)

    async def main() -> Runner:
        runner = Runner([loop], clock=clock)
        running = asyncio.create_task(runner.run(samples=100))
        await clock.sleep_until(30.5)
        loop.goal = 800.0
        await clock.sleep_until(60.5)
        loop.freeze("look")
        await clock.sleep_until(70.5)
        loop.controller = Pi(kp=0.001, ki=0.003)
        loop.unfreeze()
        await running
        return runner

    records = clock.run(main()).records()
    commands = [r.applied if r.command is None else r.command for r in records]
    assert commands[31] == pytest.approx(commands[30])
    assert records[60].measurement == pytest.approx(800.0, rel=1e-3)
    assert {commands[k] for k in range(61, 72)} == {commands[60]}
    assert (records[65].reason, records[65].code) == ("look", ReasonCode.FROZEN)
    assert records[-1].measurement == pytest.approx(800.0, rel=1e-3)


def test_state_survives_a_restart(tmp_path: Path) -> None:
    """Half a run, a new process, the other half: the same commands as in one go."""
    whole_clock = VirtualClock()
    whole = run([_loop("rate", whole_clock)], samples=20, clock=whole_clock).records()

    with SqliteDatabase(tmp_path / "state.db") as database:
        store = LoopStates(database)
        clock = VirtualClock()
        plant = ArxPlant(MODEL, command=1.0)
        first = run([_loop("rate", clock, plant=plant)], samples=10, clock=clock, store=store).records()

        async def pause() -> None:
            await clock.sleep_until(10.0)

        clock.run(pause())
        second = run([_loop("rate", clock, plant=plant)], samples=10, clock=clock, store=store).records()
    assert [record.command for record in first + second] == [record.command for record in whole]


def test_a_state_of_another_controller_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    class Store:
        def save(self, loop_name: str, state: Any) -> None:
            del loop_name, state

        def load(self, loop_name: str) -> Any:
            return {"nonsense": loop_name}

    clock = VirtualClock()
    runner = run([_loop("rate", clock)], samples=3, clock=clock, store=Store())
    assert len(runner.records()) == 3
    assert "starts afresh" in caplog.text


def test_a_sink_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(MemorySink):
        def write(self, records: Any) -> None:
            raise OSError(f"disk full: {len(records)}")

    memory = MemorySink()
    clock = VirtualClock()
    run([_loop("rate", clock)], samples=5, clock=clock, telemetry=[Broken(), memory])
    assert len(memory.records()) == 5
    assert caplog.text.count("disk full") == 1


def test_blocking_calls_leave_the_other_loops_alone() -> None:
    """On the wall clock: a sensor that waits in a thread until the other loop has had its samples."""
    done = threading.Event()
    served: list[float] = []

    def quick() -> float:
        served.append(1.0)
        if len(served) >= 5:
            done.set()
        return 400.0

    def slow() -> float:
        assert done.wait(60.0)
        return 400.0

    options: dict[str, Any] = {"actuator": lambda _: None, "controller": PI, "goal": 400.0, "period_s": 0.01}
    loops = [Loop("slow", sensor=slow, blocking=True, **options), Loop("quick", sensor=quick, **options)]
    runner = run(loops, samples=8)
    assert len(runner.records("quick")) == 8
    assert any(record.code is ReasonCode.OVERDUE for record in runner.records("slow"))


class _Load(NamedTuple):
    depth: Any
    rate: Any


@pytest.mark.parametrize(
    ("read", "region"),
    [
        (lambda: [None, np.int64(900)], 1),
        (lambda: (value for value in (1, 900)), 1),
        (lambda: _Load(None, 900), 1),
        (lambda: (1.0, "many"), 0),
    ],
)
def test_disturbances_are_numbers_however_they_are_returned(read: Callable[[], Any], region: int) -> None:
    clock = VirtualClock()
    controller = GainScheduled((Region(0.0, 0.0, 0.01), Region(500.0, 0.0, 0.05)), by="disturbance", index=1)
    loop = _loop("scheduled", clock, controller=controller, disturbances=read)
    (record,) = run([loop], samples=1, clock=clock).records()
    assert record.code is not ReasonCode.HELD_CONTROLLER_FAILED
    assert loop.state.controller.region == region
