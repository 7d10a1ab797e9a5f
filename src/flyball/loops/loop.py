"""What a user declares: sensor → controller → actuator, with a goal or a reference."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from flyball.control.guard.guard import Guard
from flyball.control.models import Arx
from flyball.control.record import MODES, LoopRecord, Mode
from flyball.control.step import Controller, Disturbances, ReasonCode, Value, is_usable
from flyball.errors import InvalidValue
from flyball.loops import policy as rules
from flyball.loops.policy import LoopState, Observation, Policy

Reading: TypeAlias = float | tuple[float, ...] | None
Sensor: TypeAlias = Callable[[], Reading | Awaitable[Reading]]
"""Says what is measured now, or None where there is no estimate yet; may be a coroutine function."""
Actuator: TypeAlias = Callable[[Any], Reading | Awaitable[Reading]]
"""Takes a command and returns what was really applied (None: as commanded); may be a coroutine function."""
Reference: TypeAlias = Callable[[], Value]
"""Says what the set point is now: a cascade, a ramp, a goal that follows from what was measured."""

DEFAULT_GUARD = Guard()


class Loop:
    """One feedback loop.

    >>> from flyball.control.controllers.pi import Pi
    >>> tank = {"level": 0.0, "valve": 0.0}
    >>> def measure() -> float:
    ...     tank["level"] = 0.5 * tank["level"] + tank["valve"]
    ...     return tank["level"]
    >>> loop = Loop("tank", sensor=measure, actuator=lambda u: tank.update(valve=u), controller=Pi(0.1, 0.2),
    ...             goal=10.0, limits=(0.0, 20.0), mode="on")
    >>> from flyball.testing.clock import VirtualClock
    >>> loop.run(samples=60, clock=VirtualClock())
    >>> round(tank["level"], 3), round(loop.command, 3)
    (10.0, 5.0)

    `goal` is the set point; a loop whose set point changes by itself has a `reference` instead, a function that is
    called at each sample, after the sensor.

    A loop starts in the mode `advise`, which touches nothing. `goal`, `controller`, `guard` and `mode` may be
    changed while it runs; the actuator then glides to its new value instead of jumping. A loop keeps no thread
    and no task of its own: `run` drives it alone, `flyball.loops.runner.Runner` drives many.

    `guard` watches the loop and freezes it, with the reason in words, when it no longer does what a loop
    should (None: nobody watches). `command` is where the actuator stands at the start (default: the lower limit,
    or 0). `blocking` says that the sensor or actuator may wait (a synchronous network call): they are then
    called in threads, so that other loops do not wait with them. With the `model` of the plant, a P, PI, PID or
    state feedback controller is verified before it acts: unstable gains are refused, fragile ones too unless
    `allow_fragile`. `glide` False lets the actuator jump with a new goal, for a controller with
    feed-forward.
    """

    def __init__(
        self,
        name: str,
        *,
        sensor: Sensor,
        actuator: Actuator,
        controller: Controller[Any],
        goal: Value | None = None,
        reference: Reference | None = None,
        period_s: float = 1.0,
        mode: Mode = "advise",
        limits: tuple[Value, Value] | None = None,
        guard: Guard | None = DEFAULT_GUARD,
        command: Value | None = None,
        disturbances: Callable[[], Disturbances] | None = None,
        blocking: bool = False,
        model: Arx | None = None,
        allow_fragile: bool = False,
        glide: bool = True,
    ) -> None:
        self.sensor = sensor
        self.actuator = actuator
        self.disturbances = disturbances
        self.blocking = blocking
        self._policy = Policy(name, controller, period_s, limits, guard, glide)
        first = command if command is not None else limits[0] if limits else 0.0
        self._state = rules.start(self._policy, first)
        self._frozen: str | None = None
        self._last: LoopRecord | None = None
        self._model, self._allow_fragile = model, allow_fragile
        if (goal is None) == (reference is None):
            raise InvalidValue(f"loop {name!r} needs either a goal or a reference, got {goal!r} and {reference!r}")
        self._goal: Value | None = None
        self._reference: Reference | None = None
        if goal is not None:
            self.goal = goal
        self._reference = reference
        self.mode = mode

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def period_s(self) -> float:
        return self._policy.period_s

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def state(self) -> LoopState:
        return self._state

    @property
    def command(self) -> Value:
        """Where the actuator stands, as far as is known."""
        return self._state.command

    @property
    def last(self) -> LoopRecord | None:
        """The newest record."""
        return self._last

    @property
    def goal(self) -> Value | None:
        """The newest set point; None before the first sample of a loop with a reference."""
        return self._goal

    @goal.setter
    def goal(self, goal: Value) -> None:
        if self._reference is not None:
            raise InvalidValue(
                f"the set point of loop {self.name!r} comes from its reference, got the goal {goal!r}"
            )
        if not is_usable(goal):
            raise InvalidValue(f"the goal of loop {self.name!r} must be a finite number, got {goal!r}")
        self._goal = goal

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in MODES:
            raise InvalidValue(f"the mode of loop {self.name!r} must be one of {', '.join(MODES)}, got {mode!r}")
        if mode == "on":
            self._check(self.controller)
        self._mode = mode

    @property
    def controller(self) -> Controller[Any]:
        return self._policy.controller

    @controller.setter
    def controller(self, controller: Controller[Any]) -> None:
        if self._mode == "on":
            self._check(controller)
        self._policy, self._state = rules.with_controller(self._policy, self._state, controller)

    @property
    def guard(self) -> Guard | None:
        return self._policy.guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._policy, self._state = rules.with_guard(self._policy, self._state, guard)

    def _check(self, controller: Controller[Any]) -> None:
        if self._model is not None:
            from flyball.loops.design_check import check_before_acting  # scipy, only where there is a model

            check_before_acting(self.name, controller, self._model, allow_fragile=self._allow_fragile)

    @property
    def verification(self) -> str:
        """What verification says of the controller: a verdict and its reason, or `not verified` and why."""
        if self._model is None:
            return "not verified: there is no model of the plant"
        from flyball.control.verification.controller import verify_controller  # scipy, only where there is a model

        return str(verify_controller(self._model, self.controller))

    @property
    def frozen(self) -> str | None:
        """Why the loop is frozen, or None."""
        return self._frozen or self._state.frozen

    def freeze(self, reason: str = "frozen by hand") -> None:
        """Hold the actuator where it is until `unfreeze`; the loop goes on observing."""
        self._frozen = reason

    def unfreeze(self) -> None:
        """Let the loop act again, after it was frozen by hand or by its guard."""
        self._frozen = None
        self._state = rules.unfreeze(self._state)

    def step(
        self,
        time: float,
        measurement: Value | None,
        disturbances: Disturbances = (),
        problem: str | None = None,
        problem_code: ReasonCode = ReasonCode.SENSOR_FAILED,
    ) -> LoopRecord:
        """Decide one step from what was measured at `time`; the caller passes the command to the actuator."""
        if self._reference is not None:
            try:
                self._goal = self._reference()
            except Exception as error:  # noqa: BLE001 – a reference may raise anything; the actuator rests meanwhile
                measurement = None
                if problem is None:
                    problem, problem_code = (
                        f"the reference raised {type(error).__name__}: {error}",
                        ReasonCode.REFERENCE_FAILED,
                    )
        seen = Observation(
            time,
            math.nan if self._goal is None else self._goal,
            measurement,
            None,
            disturbances,
            self._mode,
            self._frozen,
            problem,
            problem_code,
        )
        self._state, self._last = rules.decide(self._policy, self._state, seen)
        return self._last

    def applied(self, value: Value) -> None:
        """Report the command that the actuator really applied (a limit, a manual move, a refused command)."""
        self._state = self._state.at(value)

    def save(self) -> Any:
        """All that the loop remembers, as plain data that JSON can carry."""
        return rules.to_store(self._state)

    def restore(self, saved: Any) -> None:
        """Go on from what `save` returned: the next action is the one that would have come."""
        self._state = rules.from_store(self._policy, saved, self._state.command)

    def run(self, *, samples: int | None = None, clock: Any = None) -> None:
        """Drive this loop alone, for so many samples or until interrupted."""
        from flyball.loops.runner import run

        run([self], samples=samples, clock=clock)
