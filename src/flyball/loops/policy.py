"""One step of a loop as a pure function: what was observed goes in, what to do and why comes out.

    state = start(policy, command)
    state, record = decide(policy, state, observation)

The live runner and the twin both run exactly this, so a loop behaves as its twin does. The order of
one step: account for time (late, missed, out of order), let the controller propose, glide over a change of
set point or gains, apply the limits, ask the guard, and only then, if the mode is `on` and nothing froze the loop,
command the actuator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from flyball.control.controllers.common import as_tuple
from flyball.control.guard.guard import Guard, GuardState, Verdict
from flyball.control.guard.hold import Hold
from flyball.control.limits import clamp_value
from flyball.control.record import LoopRecord, Mode
from flyball.control.state import from_plain, to_plain
from flyball.control.step import (
    Action,
    Controller,
    Disturbances,
    ReasonCode,
    Sample,
    Value,
    hold,
    is_usable,
    shifted,
)
from flyball.control.wrappers import transfer
from flyball.control.wrappers.bumpless import Bumpless, BumplessState
from flyball.control.wrappers.common import hold_invalid, same_shape, saturation_code
from flyball.control.wrappers.saturation import Saturation
from flyball.errors import InvalidValue

FADE = 0.5
"""Part of a bump that is left after each sample: after seven samples less than one per cent."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The configuration of a loop's decisions. `limits` are the lowest and highest command the actuator ever gets.

    `glide` False: the actuator may jump with a new goal, for controllers with feed-forward.
    """

    name: str
    controller: Controller[Any]
    period_s: float = 1.0
    limits: tuple[Value, Value] | None = None
    guard: Guard | None = None
    glide: bool = True

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidValue("name of a loop must not be empty, got ''")
        if not (math.isfinite(self.period_s) and self.period_s > 0):
            raise InvalidValue(
                f"period_s of loop {self.name!r} must be a number of seconds > 0, got {self.period_s}"
            )
        if self.limits is not None:
            try:
                Saturation(self.controller, *self.limits)  # checks the limits
            except (InvalidValue, TypeError) as error:
                raise InvalidValue(
                    f"limits of loop {self.name!r} must be its lowest and its highest command, "
                    f"got {self.limits} ({error})"
                ) from None


@dataclass(frozen=True, slots=True)
class Gap:
    """The rest of a bump that is faded out; `pending` until it has been measured at the first usable sample."""

    pending: bool
    offset: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LoopState:
    """All that a loop remembers between two steps; a value, so it can be stored and restored.

    `time` and `setpoint` are those of the newest sample, `command` is the newest known value of the actuator,
    `acting` whether that sample could move it. `gap` is None in everyday operation; `frozen` is the reason for
    which a person holds the actuator until `unfreeze`, or the guard, which then watches in `hold` whether the
    controller may act again.
    """

    controller: Any
    command: Value
    time: float | None = None
    setpoint: Value | None = None
    acting: bool = False
    gap: Gap | None = None
    guard: GuardState | None = None
    frozen: str | None = None
    hold: Hold | None = None

    def at(self, applied: Value) -> LoopState:
        """The same state with the command that the actuator reports as applied."""
        if applied == self.command or not is_usable(applied) or not same_shape(applied, self.command):
            return self
        return replace(self, command=applied)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a loop observed at one instant.

    `applied` None: the actuator is where the last command put it. `problem` says why there is no measurement, and
    `problem_code` says the same to programs.
    """

    time: float
    setpoint: Value
    measurement: Value | None
    applied: Value | None = None
    disturbances: Disturbances = ()
    mode: Mode = "on"
    frozen: str | None = None
    problem: str | None = None
    problem_code: ReasonCode = ReasonCode.SENSOR_FAILED


def start(policy: Policy, command: Value) -> LoopState:
    """The state of a loop whose actuator stands at `command` right now."""
    if not is_usable(command):
        raise InvalidValue(f"the first command of loop {policy.name!r} must be finite, got {command!r}")
    if policy.limits is not None:
        Saturation(policy.controller, *policy.limits).initial(
            command
        )  # checks that limits and command have the same shape
    return LoopState(policy.controller.initial(command), command)


def with_controller(policy: Policy, state: LoopState, controller: Controller[Any]) -> tuple[Policy, LoopState]:
    """Swap the controller (new gains or another kind) while the loop runs; the actuator does not jump."""
    fresh = replace(state, controller=transfer(controller, state.command), gap=_fresh_gap(state.command))
    return replace(policy, controller=controller), fresh


def with_guard(policy: Policy, state: LoopState, guard: Guard | None) -> tuple[Policy, LoopState]:
    """Swap the guard while the loop runs; the new one starts anew, and what the old one froze stays frozen."""
    return replace(policy, guard=guard), replace(state, guard=None)


def decide(policy: Policy, state: LoopState, seen: Observation) -> tuple[LoopState, LoopRecord]:
    """Run one step.

    *Time.* A sample that is not newer than the last one is ignored. Samples that were due meanwhile are
    counted as missed; the controller gets the real `dt`.

    *Bumps.* When the controller or the mode has changed, what the controller now proposes may lie far from the
    applied command. The first command is then the applied one, and the gap fades by half with every sample (see
    `Bumpless`), whatever the controller is and whether or not it has a memory. When the goal has changed, the bump
    is what the controller proposes beyond its proposal for the goal before; that alone is faded in, and the
    reaction to the measurement goes on. So a goal that changes at every sample is followed.

    *Limits.* Whatever a controller proposes is cut to the limits; what is not a finite number moves nothing.

    *Guard.* It sees every step. A missing or stale measurement holds the actuator for as long as it lasts; a gain
    that is lost or has changed its sign, and an oscillation, until the guard sees that the cause is gone or was
    not the loop (`control.guard.hold`), or until `unfreeze`. Where the loop does not act, the guard only reports.
    """
    missed = 1 if seen.measurement is None else 0
    dt = policy.period_s
    if not math.isfinite(seen.time) or (state.time is not None and seen.time <= state.time):
        return state, _ignored(policy, state, seen, missed)
    if state.time is not None:
        dt = seen.time - state.time
        missed += max(0, round(dt / policy.period_s) - 1)
    applied = seen.applied
    if applied is None or not is_usable(applied) or not same_shape(applied, state.command):
        applied = state.command
    frozen = seen.frozen or state.frozen
    acting = frozen is None and seen.mode == "on"
    setpoint = seen.setpoint if is_usable(seen.setpoint) else state.setpoint

    gap = state.gap
    previous = None  # the goal before, where it has changed
    if not acting:
        gap = None  # nothing is moved, so there is nothing to glide over; the next start measures its own gap
    elif state.setpoint is not None:
        if not state.acting:
            gap = _fresh_gap(applied) if gap is None else Gap(True, gap.offset)
        elif policy.glide and setpoint != state.setpoint:
            gap, previous = gap or Gap(False, _no_offset(applied)), state.setpoint
    sample = Sample(seen.time, dt, seen.setpoint, seen.measurement, applied, seen.disturbances, policy.limits)
    inner, action, gap = _propose(policy, state.controller, gap, sample, applied, previous)

    proposed, latched, hold, alert = action.command, state.frozen, state.hold, ""
    command = proposed if acting else None
    guard = state.guard
    if policy.guard is not None:
        guard, verdict = policy.guard.check(guard or policy.guard.initial(), sample, action)
        if verdict.notices:
            alert = verdict.reason
            if acting and verdict.response in ("freeze", "retreat"):
                acting, command = False, _retreat(policy, verdict, applied)
                frozen = alert
                guard, hold = policy.guard.stop(guard, verdict, sample.setpoint)
                latched = alert if _is_lasting(verdict) else None
        if state.hold is not None:
            guard, hold, release = policy.guard.watch(state.hold, guard, sample)
            if release is not None:
                latched, alert = None, f"the controller acts again: {release.reason}"
    position = applied if command is None else command
    reason, code = action.reason, action.code
    if seen.problem:
        reason, code = seen.problem, seen.problem_code
    elif frozen:
        reason, code = frozen, ReasonCode.FROZEN
    record = LoopRecord(
        policy.name,
        seen.time,
        seen.setpoint,
        seen.measurement,
        applied,
        proposed,
        command,
        seen.mode,
        frozen is not None,
        action.saturated,
        missed,
        action.parts,
        reason,
        alert,
        code,
    )
    return LoopState(inner, position, seen.time, setpoint, acting, gap, guard, latched, hold), record


def freeze(state: LoopState, reason: str) -> LoopState:
    """Hold the actuator where it is until `unfreeze`; the controller goes on observing."""
    return replace(state, frozen=reason or "frozen", hold=None)


def unfreeze(state: LoopState) -> LoopState:
    """Act again; the guard starts anew."""
    return replace(state, frozen=None, hold=None, guard=None)


def to_store(state: LoopState) -> Any:
    """The state as plain data that JSON can carry."""
    return to_plain(state)


def from_store(policy: Policy, data: Any, command: Value) -> LoopState:
    """Restore a stored state. Its time is dropped: the time that the program was away is no sample."""
    return replace(from_plain(start(policy, command), data), time=None)


def _propose(
    policy: Policy, inner: Any, gap: Gap | None, sample: Sample, applied: Value, previous: Value | None
) -> tuple[Any, Action, Gap | None]:
    """What the controller proposes, without a bump and within the limits; or a hold with the reason."""
    try:
        if gap is None:
            inner, action = policy.controller.step(inner, sample)
        else:
            inner, action, gap = _glide(policy, inner, gap, sample, applied, previous)
    except Exception as error:  # noqa: BLE001 – a user's controller may raise anything; the actuator holds
        reason = f"the controller raised {type(error).__name__}: {error}: held"
        return inner, hold(reason, ReasonCode.HELD_CONTROLLER_FAILED), gap
    wanted = action.command
    if wanted is None:
        return inner, action, gap
    if not is_usable(wanted) or not same_shape(wanted, applied):
        return inner, hold_invalid(wanted), gap
    if policy.limits is not None:
        within, cut = clamp_value(wanted, *policy.limits)
        if cut:
            reason = action.reason or f"limited to {within} (wanted {wanted})"
            action = Action(within, action.parts, cut, reason, action.code or saturation_code(cut))
    return inner, action, gap


def _glide(
    policy: Policy, inner: Any, gap: Gap, sample: Sample, applied: Value, previous: Value | None
) -> tuple[Any, Action, Gap | None]:
    glider = Bumpless(policy.controller, fade=FADE)
    fading, action = glider.step(BumplessState(inner, applied if gap.pending else None, gap.offset), sample)
    if action.command is None:
        return fading.inner, action, gap
    offset, command = fading.offset, action.command
    if previous is not None and not gap.pending:
        # The step is pure: what it gives for the goal before, all else equal, shows what the new goal adds.
        _, unchanged = glider.step(BumplessState(inner, None, gap.offset), replace(sample, setpoint=previous))
        bump = _difference(command, unchanged.command)
        offset = tuple(d - b for d, b in zip(offset, bump, strict=True))
        command = shifted(command, tuple(-b for b in bump))
        parts = {**action.parts, "transfer": offset[0]} if len(offset) == 1 else action.parts
        action = replace(action, command=command, parts=parts)
    size = max(map(abs, as_tuple(command)))
    faded = max(map(abs, offset)) <= 1e-9 * max(1.0, size)
    return fading.inner, action, None if faded else Gap(False, offset)


def _difference(command: Value, other: Value | None) -> tuple[float, ...]:
    """How far `command` is from another one; 0 where there is no other."""
    if other is None or not same_shape(command, other):
        return _no_offset(command)
    return tuple(c - o for c, o in zip(as_tuple(command), as_tuple(other), strict=True))


def _retreat(policy: Policy, verdict: Verdict, applied: Value) -> Value | None:
    """The last safe command, within the limits; None: the actuator stays."""
    safe = verdict.command
    if safe is None or not is_usable(safe) or not same_shape(safe, applied):
        return None
    return safe if policy.limits is None else clamp_value(safe, *policy.limits)[0]


def _is_lasting(verdict: Verdict) -> bool:
    """Whether a freeze lasts longer than its cause: only a missing or stale measurement comes back by itself."""
    severe = [notice.kind for notice in verdict.notices if notice.response in ("freeze", "retreat")]
    return any(kind not in ("missing", "stale") for kind in severe)


def _fresh_gap(command: Value) -> Gap:
    return Gap(True, _no_offset(command))


def _no_offset(command: Value) -> tuple[float, ...]:
    return (0.0,) * len(as_tuple(command))


def _ignored(policy: Policy, state: LoopState, seen: Observation, missed: int) -> LoopRecord:
    return LoopRecord(
        loop=policy.name,
        time=seen.time,
        setpoint=seen.setpoint,
        measurement=seen.measurement,
        applied=state.command,
        proposed=None,
        command=None,
        mode=seen.mode,
        frozen=(seen.frozen or state.frozen) is not None,
        saturated=0,
        missed=missed,
        parts={},
        reason=f"the sample at {seen.time} s is not newer than the last one: ignored",
        code=ReasonCode.OUT_OF_ORDER,
    )
