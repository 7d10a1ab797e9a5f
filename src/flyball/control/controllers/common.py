"""What the controllers share: reading a sample safely, and checking their own parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flyball.control.limits import clamp
from flyball.control.step import Action, ReasonCode, Sample, Value, hold
from flyball.errors import InvalidValue


def scalar_error(sample: Sample) -> float | None:
    """Set point minus measurement, or None where that is not a finite number.

    >>> scalar_error(Sample(0.0, 1.0, setpoint=400.0, measurement=390.0))
    10.0
    >>> scalar_error(Sample(0.0, 1.0, setpoint=400.0, measurement=None)) is None
    True
    """
    goal, seen = sample.setpoint, sample.measurement
    if seen is None or isinstance(seen, tuple) or isinstance(goal, tuple):
        return None
    error = goal - seen  # NaN and infinities survive the subtraction: one test finds them all
    return error if math.isfinite(error) else None


def vector_error(sample: Sample, size: int) -> tuple[float, ...] | None:
    """Set point minus measurement, component by component; a scalar set point holds for each component."""
    goal, seen = sample.setpoint, sample.measurement
    if seen is None:
        return None
    seen = as_tuple(seen)
    goals = goal if isinstance(goal, tuple) else (goal,) * size
    if len(seen) != size or len(goals) != size:
        return None
    error = tuple(g - y for g, y in zip(goals, seen, strict=True))
    return error if all(map(math.isfinite, error)) else None


def applied_or(sample: Sample, command: float) -> float:
    """The command that was in force, or `command` where it is not known."""
    applied = sample.applied
    if applied is None or isinstance(applied, tuple) or not math.isfinite(applied):
        return command
    return applied


def applied_or_vector(sample: Sample, command: tuple[float, ...]) -> tuple[float, ...]:
    applied = sample.applied
    if applied is None:
        return command
    applied = as_tuple(applied)
    return applied if len(applied) == len(command) and all(map(math.isfinite, applied)) else command


def back_calculate(integral: float, asked: float, sample: Sample, tracking_samples: float) -> float:
    """The integral with which the last step would have given the command that was in force (anti-windup).

    An actuator that others moved is followed at once. A command that the limits cut is followed with a tracking
    time, since each sample's noise is in what was asked: followed at once, noise that goes beyond the limit would
    be subtracted and noise that comes back from it would act, which pulls the command off the limit.

    >>> cut = Sample(0.0, 1.0, setpoint=0.0, measurement=0.0, applied=10.0, limits=(0.0, 10.0))
    >>> back_calculate(9.0, 14.0, cut, tracking_samples=4.0), back_calculate(9.0, 7.0, cut, tracking_samples=4.0)
    (8.0, 12.0)
    """
    in_force = applied_or(sample, asked)
    missing = in_force - asked
    if missing and tracking_samples > 1.0 and _is_cut(asked, in_force, sample.limits):
        missing /= tracking_samples
    return integral + missing


def tracking_time(proportional: float, integral: float) -> float:
    """The tracking time in samples that goes with the gains: the integral time, at least one sample.

    It is what textbooks advise for PI. The integral then runs ahead of the limit by no more than Kp·e.
    """
    return max(1.0, abs(proportional / integral)) if integral else 1.0


def _is_cut(asked: float, in_force: float, limits: tuple[Value, Value] | None) -> bool:
    if limits is None or isinstance(limits[0], tuple) or isinstance(limits[1], tuple):
        return False
    within = clamp(asked, limits[0], limits[1])
    return within != asked and math.isclose(within, in_force, rel_tol=1e-9, abs_tol=1e-12)


def as_tuple(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def as_scalar(value: Value) -> float:
    """The one number in `value`, for controllers with one command."""
    if isinstance(value, tuple):
        if len(value) != 1:
            raise InvalidValue(
                f"this controller has one command, got {len(value)} commands {value}; use lqr or fixed"
            )
        value = value[0]
    return float(value)


def hold_unusable(sample: Sample) -> Action:
    """A hold for a sample that cannot be computed with; its reason says what is wrong with it.

    >>> action = hold_unusable(Sample(0.0, 1.0, setpoint=400.0, measurement=float("nan")))
    >>> action.reason, action.code.name
    ('the measurement is nan: held', 'HELD_INVALID_SAMPLE')
    """
    if sample.measurement is None:
        return hold("no measurement: held", ReasonCode.HELD_NO_MEASUREMENT)
    if not all(map(math.isfinite, as_tuple(sample.measurement))):
        reason = f"the measurement is {sample.measurement}: held"
    elif not all(map(math.isfinite, as_tuple(sample.setpoint))):
        reason = f"the set point is {sample.setpoint}: held"
    else:
        reason = (
            f"set point {sample.setpoint} and measurement {sample.measurement} do not fit this controller: held"
        )
    return hold(reason, ReasonCode.HELD_INVALID_SAMPLE)


HOLD_NOT_FINITE = hold("the command is not a finite number: held", ReasonCode.HELD_INVALID_COMMAND)


def check_finite(owner: object, *names: str) -> None:
    """Each named field is a finite number."""
    for name in names:
        value = getattr(owner, name)
        if not _is_number(value) or not math.isfinite(value):
            raise _wrong(owner, name, value, "a finite number")


def check_between(
    owner: object, name: str, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> None:
    """The named field is a number from `low` to `high`; an open end is excluded."""
    value = getattr(owner, name)
    inside = _is_number(value) and low <= value <= high
    if not inside or (low_open and value == low) or (high_open and value == high):
        bounds = f"{'>' if low_open else '>='} {low:g}"
        if math.isfinite(high):
            bounds += f" and {'<' if high_open else '<='} {high:g}"
        raise _wrong(owner, name, value, f"a number {bounds}")


def check_choice(owner: object, name: str, choices: Sequence[str]) -> None:
    value = getattr(owner, name)
    if value not in choices:
        raise _wrong(owner, name, value, f"one of {', '.join(choices)}")


def check_whole(owner: object, name: str, low: int) -> None:
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise _wrong(owner, name, value, f"an integer >= {low}")


def check_finite_tuple(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, tuple) or not all(_is_number(v) and math.isfinite(v) for v in value):
        raise _wrong(owner, name, value, "a tuple of finite numbers")


def check_matrix(owner: object, name: str, columns: int | None = None) -> None:
    """The named field is a tuple of equally long tuples of finite numbers."""
    rows = getattr(owner, name)
    fits = isinstance(rows, tuple) and all(
        isinstance(row, tuple)
        and len(row) == len(rows[0])
        and all(_is_number(v) and math.isfinite(v) for v in row)
        for row in rows
    )
    if not fits or (columns is not None and any(len(row) != columns for row in rows)):
        shape = "rows of equal length" if columns is None else f"rows of {columns}"
        raise _wrong(owner, name, rows, f"a matrix of finite numbers, {shape}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(owner: object, name: str, value: object, valid: str) -> InvalidValue:
    return InvalidValue(f"{type(owner).__name__}.{name} must be {valid}, got {value!r}")
