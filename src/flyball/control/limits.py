"""Limits on a command: how far it may go, and how fast."""

from __future__ import annotations

from flyball.control.step import Value


def clamp(value: float, low: float, high: float) -> float:
    """The number between `low` and `high` that is nearest to `value`.

    NaN becomes `low`: whatever comes in, what goes out is within the limits.

    >>> clamp(412.0, 1.0, 360.0), clamp(12.0, 1.0, 360.0), clamp(float("nan"), 1.0, 360.0)
    (360.0, 12.0, 1.0)
    """
    if value >= low:
        return value if value <= high else high
    return low


def slew(previous: float, wanted: float, rise: float, fall: float) -> float:
    """`wanted`, or as near to it as one step up by `rise` or down by `fall` from `previous` comes.

    >>> slew(10.0, 40.0, rise=5.0, fall=2.0), slew(10.0, 0.0, rise=5.0, fall=2.0)
    (15.0, 8.0)
    """
    return clamp(wanted, previous - fall, previous + rise)


def clamp_value(value: Value, low: Value, high: Value) -> tuple[Value, int]:
    """A scalar or a vector within limits, and which limit cut it: −1, +1 or 0 (the first that did, in a vector).

    Limits are one number for all components or a number for each.

    >>> clamp_value((0.5, 9.0), 0.0, (1.0, 2.0))
    ((0.5, 2.0), 1)
    """
    if not isinstance(value, tuple):
        assert not isinstance(low, tuple)
        assert not isinstance(high, tuple)
        within = clamp(value, low, high)
        return within, side(value, within)
    parts = tuple(clamp(v, _component(low, i), _component(high, i)) for i, v in enumerate(value))
    return parts, next((s for s in map(side, value, parts) if s), 0)


def slew_value(previous: Value, wanted: Value, rise: float, fall: float) -> tuple[Value, int]:
    """`slew` for scalars and vectors, and which way it cut."""
    if isinstance(wanted, tuple):
        assert isinstance(previous, tuple)
        parts = tuple(slew(p, w, rise, fall) for p, w in zip(previous, wanted, strict=True))
        return parts, next((s for s in map(side, wanted, parts) if s), 0)
    assert not isinstance(previous, tuple)
    within = slew(previous, wanted, rise, fall)
    return within, side(wanted, within)


def side(wanted: float, within: float) -> int:
    """On which side a limit cut: +1 if less came out than was wanted, −1 if more, 0 if nothing was cut."""
    return 0 if wanted == within else 1 if wanted > within else -1


def _component(limit: Value, index: int) -> float:
    return limit[index] if isinstance(limit, tuple) else limit
