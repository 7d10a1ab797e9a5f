"""What the controllers share: reading a sample safely, and checking their own parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def applied_or(sample: Sample, asked: float) -> float:
    """The command that was in force, or `asked` where it is not known."""
    applied = sample.applied
    if applied is None or isinstance(applied, tuple) or not math.isfinite(applied):
        return asked
    return applied


def applied_or_vector(sample: Sample, asked: tuple[float, ...]) -> tuple[float, ...]:
    applied = sample.applied
    if applied is None:
        return asked
    applied = as_tuple(applied)
    return applied if len(applied) == len(asked) and all(map(math.isfinite, applied)) else asked


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
