"""Run many loops on one asyncio clock: the only module here that calls sensors and actuators.

All loops of one period are served in one tick by one coroutine: a plain synchronous sensor and actuator cost
two function calls, and ten thousand loops need no ten thousand tasks. Only a loop whose sensor or actuator is
asynchronous, or was declared `blocking`, runs in a task of its own for the duration of a step. Whatever one loop's
sensor or actuator does (raise, hang, return nonsense), the others keep their pace: the loop itself gets a step
without a measurement and a record that says why.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flyball.control.record import LoopRecord
from flyball.control.step import Disturbances, ReasonCode, Value
from flyball.errors import FlyballError, InvalidValue
from flyball.loops.clock import Clock, WallClock
from flyball.loops.loop import Loop
from flyball.loops.telemetry.memory import MemorySink
from flyball.loops.telemetry.recorder import Recorder
from flyball.loops.telemetry.sink import Sink
from flyball.store.protocol import StateStore

if TYPE_CHECKING:
    from flyball.loops.recommendation import Recommendation

log = logging.getLogger("flyball.loops")

_SLICE = 200  # loops served before other tasks get a turn: about 10 ms
_ON_TIME = 1e-6  # share of a period by which a tick may be late and still count as on time
_SLOW_CALL_S = 0.1  # a synchronous call that lasts longer is made in a thread from then on
_PATIENCE = 10  # periods after which a coroutine that does not come back is cancelled


@dataclass(slots=True)
class _RunningLoop:
    """A loop, and how its sensor and actuator are called."""

    loop: Loop
    in_thread: bool
    awaits: bool
    task: asyncio.Task[None] | None = None
    started: float = 0.0
    cancelled: bool = False


@dataclass(slots=True, order=True)
class _Group:
    """The loops of one period; `ticks` counts from `origin`, so that rounding errors do not add up."""

    due: float
    period_s: float
    origin: float = field(compare=False)
    ticks: int = field(compare=False, default=0)
    served: int = field(compare=False, default=0)
    members: dict[str, _RunningLoop] = field(compare=False, default_factory=dict)

    def restart(self, now: float) -> None:
        self.due = self.origin = now
        self.ticks = self.served = 0

    def schedule_next(self, now: float) -> None:
        """The next tick that is not past; those in between are missed, and `decide` counts them."""
        self.ticks = max(self.ticks + 1, math.ceil((now - self.origin) / self.period_s - _ON_TIME))
        self.due = self.origin + self.ticks * self.period_s


class Runner:
    """Runs loops until stopped.

    `telemetry` are the sinks for records (default: the newest in memory, see `records`). With a `store`,
    loops go on from where they were when the program ended; their states are saved every `save_every_s` and
    at the end. If the program dies, actuators keep their last value: nothing is reset at the end.
    """

    def __init__(
        self,
        loops: Iterable[Loop] = (),
        *,
        clock: Clock | None = None,
        telemetry: Sequence[Sink] | None = None,
        store: StateStore | None = None,
        save_every_s: float = 10.0,
    ) -> None:
        self.clock: Clock = clock or WallClock()
        self._memory = MemorySink()
        self._recorder = Recorder([self._memory] if telemetry is None else telemetry, self.clock)
        self._store = store
        self._save_every_s = save_every_s
        self._groups: dict[float, _Group] = {}
        self._agenda: list[_Group] = []  # a heap: the group that is due next comes first
        self._running: dict[str, _RunningLoop] = {}
        self._saved: dict[str, Any] = {}
        self._stopping = False
        self._wake_event: asyncio.Event | None = None
        for loop in loops:
            self.add(loop)

    @property
    def loops(self) -> dict[str, Loop]:
        return {name: running.loop for name, running in self._running.items()}

    @property
    def dropped(self) -> int:
        """Records that could not be written in time and were dropped."""
        return self._recorder.dropped

    def records(self, loop: str | None = None) -> list[LoopRecord]:
        """The newest records, where `telemetry` is not set."""
        return self._memory.records(loop)

    def recommend(self, loop: str) -> Recommendation:
        """The model, its R² and the gains that the records in memory support; touches nothing."""
        from flyball.loops.recommendation import recommend

        return recommend(self.records(loop))

    def add(self, loop: Loop) -> None:
        """Add a loop, also while others run."""
        if loop.name in self._running:
            raise InvalidValue(f"names of loops must be unique, got {loop.name!r} twice")
        if self._store is not None and (saved := self._store.load(loop.name)) is not None:
            self._restore(loop, saved)
        awaits = inspect.iscoroutinefunction(loop.sensor) or inspect.iscoroutinefunction(loop.actuator)
        running = self._running[loop.name] = _RunningLoop(loop, loop.blocking, awaits)
        group = self._groups.get(loop.period_s)
        if group is None:
            now = self.clock.now()
            group = self._groups[loop.period_s] = _Group(now, loop.period_s, origin=now)
            heapq.heappush(self._agenda, group)
            self._wake()
        group.members[loop.name] = running

    def remove(self, name: str) -> Loop:
        """Stop running this loop; its actuator stays where it is."""
        if name not in self._running:
            raise InvalidValue(f"there is no loop {name!r}; there are: {', '.join(self._running) or 'none'}")
        running = self._running.pop(name)
        self._groups[running.loop.period_s].members.pop(name)
        if running.task is not None:
            running.task.cancel()
        return running.loop

    def stop(self) -> None:
        """End `run` after the tick under way."""
        self._stopping = True
        self._wake()

    async def run(self, *, samples: int | None = None) -> None:
        """Run until `stop`, until cancelled, or until every loop was served `samples` times."""
        self._stopping = False
        self._wake_event = asyncio.Event()
        for group in self._groups.values():
            group.restart(self.clock.now())
        self._agenda = list(self._groups.values())
        heapq.heapify(self._agenda)
        saver = asyncio.create_task(self._save_periodically()) if self._store is not None else None
        try:
            while self._agenda and not self._stopping:
                group = self._agenda[0]
                if samples is not None and group.served >= samples:
                    heapq.heappop(self._agenda)
                elif await self._wait_until(group.due):
                    group = heapq.heappop(self._agenda)
                    await self._tick(group)
                    heapq.heappush(self._agenda, group)
        finally:
            self._wake_event = None
            if saver is not None:
                saver.cancel()
            await self._finish_steps()
            await self._recorder.finish()
            if self._store is not None:
                await self.clock.call_blocking(self._save, self.loops)

    async def _wait_until(self, due: float) -> bool:
        """Wait until `due`; False where something else woke us before."""
        assert self._wake_event is not None  # set for as long as `run` runs
        if self.clock.now() >= due:
            return True
        sleeper = asyncio.ensure_future(self.clock.sleep_until(due))
        waker = asyncio.ensure_future(self._wake_event.wait())
        try:
            await asyncio.wait({sleeper, waker}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            waker.cancel()
        self._wake_event.clear()
        return self.clock.now() >= due

    def _wake(self) -> None:
        if self._wake_event is not None:
            self._wake_event.set()

    async def _tick(self, group: _Group) -> None:
        members = list(group.members.values())
        due = group.due
        group.schedule_next(self.clock.now())
        group.served += 1
        for first in range(0, len(members), _SLICE):
            now = self.clock.now()
            time = due if now - due <= _ON_TIME * group.period_s else now
            records: list[LoopRecord] = []
            for running in members[first : first + _SLICE]:
                record = self._step(running, time)
                if record is not None:
                    records.append(record)
            self._recorder.put(records)
            await asyncio.sleep(0)

    def _step(self, running: _RunningLoop, time: float) -> LoopRecord | None:
        """One step of one loop; None where it goes on in a task of its own."""
        if running.task is not None:
            if not running.task.done():
                return self._step_overdue(running, time)
            running.task = None
        loop = running.loop
        if running.awaits or running.in_thread:
            running.task = asyncio.create_task(self._step_in_task(running, time))
            running.started, running.cancelled = time, False
            return None
        began = self.clock.now()
        problem = None
        reading: Any = None
        try:
            reading = loop.sensor()
            if type(reading) is not float:
                if inspect.isawaitable(reading):
                    running.awaits = True
                    running.task = asyncio.create_task(self._step_in_task(running, time, reading))
                    running.started, running.cancelled = time, False
                    return None
                reading = _number(reading)
        except Exception as error:  # noqa: BLE001 – a sensor may raise anything; only its own loop goes without
            reading, problem = None, _error_text("sensor", error)
        record = loop.step(time, reading, _disturbances(loop), problem)
        if record.command is not None:
            try:
                answer = loop.actuator(record.command)
                if answer is not None:
                    if inspect.isawaitable(answer):
                        running.awaits = True
                        running.task = asyncio.create_task(self._apply_in_task(loop, record, answer))
                        running.started, running.cancelled = time, False
                        return None
                    record = _note_applied(loop, record, answer)
            except Exception as error:  # noqa: BLE001 – an actuator may raise anything
                record = _actuator_failed(loop, record, error)
        if self.clock.now() - began > _SLOW_CALL_S:
            running.in_thread = True
            log.warning("loop %s waits %.2g s in a call; called in a thread from now on", loop.name, _SLOW_CALL_S)
        return record

    def _step_overdue(self, running: _RunningLoop, time: float) -> LoopRecord:
        """The step of a loop whose sensor or actuator has not come back from an earlier one."""
        waits = time - running.started
        overdue = waits >= _PATIENCE * running.loop.period_s
        if overdue and not running.in_thread and not running.cancelled:
            assert running.task is not None
            running.cancelled = running.task.cancel()
        problem = f"the sensor or actuator has not answered for {waits:g} s"
        return running.loop.step(time, None, (), problem, ReasonCode.OVERDUE)

    async def _step_in_task(
        self, running: _RunningLoop, time: float, reading: Awaitable[Any] | None = None
    ) -> None:
        loop, problem, measured = running.loop, None, None
        try:
            answer = reading if reading is not None else await self._call(running, loop.sensor)
            measured = _number(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001 – a sensor may raise anything; only its own loop goes without
            problem = _error_text("sensor", error)
        now = self.clock.now()
        on_time = now - time <= _ON_TIME * loop.period_s
        record = loop.step(time if on_time else now, measured, _disturbances(loop), problem)
        if record.command is not None:
            await self._apply_in_task(loop, record, self._call(running, loop.actuator, record.command))
        else:
            self._recorder.put([record])

    async def _apply_in_task(self, loop: Loop, record: LoopRecord, answer: Awaitable[Any]) -> None:
        try:
            result = await answer
            record = _note_applied(loop, record, await result if inspect.isawaitable(result) else result)
        except Exception as error:  # noqa: BLE001 – an actuator may raise anything
            record = _actuator_failed(loop, record, error)
        self._recorder.put([record])

    async def _call(self, running: _RunningLoop, function: Callable[..., Any], *arguments: Any) -> Any:
        if running.in_thread and not inspect.iscoroutinefunction(function):
            return await self.clock.call_blocking(function, *arguments)
        return function(*arguments)

    async def _finish_steps(self) -> None:
        """Steps under way get one more period, then they are cancelled."""
        tasks = {d.task: d.loop.period_s for d in self._running.values() if d.task is not None}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=max(tasks.values()))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)

    async def _save_periodically(self) -> None:
        while True:
            await self.clock.sleep_until(self.clock.now() + self._save_every_s)
            await self.clock.call_blocking(self._save, self.loops)

    def _save(self, loops: dict[str, Loop]) -> None:
        """Write the states that changed. A store that fails is reported; the loops go on."""
        assert self._store is not None
        try:
            for name, loop in loops.items():
                state = loop.save()
                if self._saved.get(name) != state:
                    self._store.save(name, state)
                    self._saved[name] = state
        except Exception as error:  # noqa: BLE001 – whatever the store raises, loops do not depend on it
            log.warning("loop states cannot be saved: %s: %s", type(error).__name__, error)

    def _restore(self, loop: Loop, saved: Any) -> None:
        try:
            loop.restore(saved)
        except FlyballError as error:  # another controller than the one that was saved
            log.warning("loop %s starts afresh: %s", loop.name, error)


def run(
    loops: Iterable[Loop], *, samples: int | None = None, clock: Clock | None = None, **options: Any
) -> Runner:
    """Run loops from a program that is not asynchronous, and return the runner for its records.

    Ends after so many samples of each loop, or on Ctrl-C. `options` are those of :class:`Runner`.
    """
    runner = Runner(loops, clock=clock, **options)
    drive: Callable[[Coroutine[Any, Any, None]], None] = getattr(clock, "run", asyncio.run)
    try:
        drive(runner.run(samples=samples))
    except KeyboardInterrupt:
        log.info("stopped by Ctrl-C; the actuators keep their values")
    return runner


def _number(reading: Any) -> Value | None:
    """A sensor's answer as a number or a tuple of numbers."""
    if reading is None or isinstance(reading, float):
        return reading
    if isinstance(reading, str | bytes):
        raise TypeError(f"{reading!r} is not a number")
    if hasattr(reading, "__len__"):
        return tuple(float(part) for part in reading)
    return float(reading)


def _disturbances(loop: Loop) -> Disturbances:
    if loop.disturbances is None:
        return ()
    try:
        values = loop.disturbances()
        numbers = [None if value is None else float(value) for value in values]
        return values._make(numbers) if hasattr(values, "_make") else tuple(numbers)  # a named tuple stays one
    except Exception as error:  # noqa: BLE001 – feed-forward is a help, not a condition
        log.debug("loop %s: disturbances: %s", loop.name, error)
        return ()


def _note_applied(loop: Loop, record: LoopRecord, answer: Any) -> LoopRecord:
    """Report to the loop what the actuator returned as applied."""
    if answer is None:
        return record
    if isinstance(answer, bool):
        raise TypeError(f"it returned {answer}, not the applied value (or None)")
    value = _number(answer)
    assert value is not None
    loop.applied(value)
    return record


def _actuator_failed(loop: Loop, record: LoopRecord, error: Exception) -> LoopRecord:
    """The record of a command that the actuator failed to carry out: its last known value still holds."""
    if record.applied is not None:
        loop.applied(record.applied)
    reason = f"{_error_text('actuator', error)}: it keeps its last value"
    return replace(record, command=None, reason=reason, code=ReasonCode.ACTUATOR_FAILED)


def _error_text(what: str, error: Exception) -> str:
    return f"the {what} raised {type(error).__name__}: {error}"
