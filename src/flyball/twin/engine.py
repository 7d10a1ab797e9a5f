"""Run loops on SimPy's clock: the decisions of `loops/policy.py`, and nothing else of that package.

Plants that are themselves SimPy processes (queues, consumers, brokers) share the `environment`; a linear plant
needs no process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flyball.control.record import LoopRecord, Mode
from flyball.control.step import Disturbances, Value
from flyball.errors import InvalidValue, require
from flyball.loops.policy import LoopState, Observation, Policy, decide, start
from flyball.twin.plants import Plant


@dataclass
class TwinLoop:
    """A loop in the twin. `goal` is a value or a function of time; at most `max_records` records are stored."""

    policy: Policy
    plant: Plant
    goal: Value | Callable[[float], Value]
    command: Value = 0.0
    mode: Mode = "on"
    disturbances: Callable[[float], Disturbances] | None = None
    max_records: int = 1_000_000
    records: list[LoopRecord] = field(default_factory=list)
    state: LoopState = field(init=False)

    def __post_init__(self) -> None:
        self.state = start(self.policy, self.command)

    def step(self, time: float) -> LoopRecord:
        """Measure, decide, act."""
        seen = Observation(
            time=time,
            setpoint=self.goal(time) if callable(self.goal) else self.goal,
            measurement=self.plant.measure(time),
            applied=self.state.command,
            disturbances=() if self.disturbances is None else self.disturbances(time),
            mode=self.mode,
        )
        self.state, record = decide(self.policy, self.state, seen)
        if record.command is not None:
            applied = self.plant.apply(record.command, time)
            if applied is not None:
                self.state = self.state.at(applied)
        self.records.append(record)
        if len(self.records) > self.max_records:
            del self.records[: self.max_records // 2]
        return record


class Twin:
    """Loops and plants in one virtual time.

    >>> from flyball.control.controllers.pi import Pi
    >>> from flyball.control.models import first_order
    >>> from flyball.twin.plants import ArxPlant
    >>> twin = Twin()
    >>> loop = twin.add(TwinLoop(Policy("prefetch", Pi(-0.0016, 0.0060)),
    ...                          ArxPlant(first_order(0.26, 59.73), command=1.0), goal=400.0, command=1.0))
    >>> twin.run(samples=60)
    >>> round(loop.records[-1].measurement, 3)
    400.0
    """

    def __init__(self, environment: Any = None) -> None:
        self.environment: Any = environment or require("simpy", "lab").Environment()
        self._loops: list[TwinLoop] = []

    def add(self, loop: TwinLoop) -> TwinLoop:
        self._loops.append(loop)
        self.environment.process(self._drive(loop))
        return loop

    def run(self, *, samples: int | None = None, until_s: float | None = None) -> None:
        """Run for so many seconds of virtual time, or for so many samples of every loop."""
        if (samples is None) == (until_s is None):
            raise InvalidValue(f"run needs either samples or until_s, got samples={samples}, until_s={until_s}")
        if until_s is None:
            assert samples is not None
            slowest = max((loop.policy.period_s for loop in self._loops), default=0.0)
            # half a period past the last sample, so that rounding cannot leave it out
            until_s = self.environment.now + (samples - 0.5) * slowest
        self.environment.run(until=until_s)

    def _drive(self, loop: TwinLoop) -> Iterator[Any]:
        origin, ticks = self.environment.now, 0
        while True:
            loop.step(origin + ticks * loop.policy.period_s)
            ticks += 1
            due = origin + ticks * loop.policy.period_s
            yield self.environment.timeout(max(0.0, due - self.environment.now))
