from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flyball.control.limits import clamp, clamp_value, side, slew, slew_value

anything = st.floats(allow_nan=True, allow_infinity=True)
finite = st.floats(-1e9, 1e9)


@given(anything, finite, finite)
def test_clamp_never_leaves_the_limits(value: float, one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    within = clamp(value, low, high)
    assert low <= within <= high
    if low <= value <= high:
        assert within == value


@given(finite, anything, st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_slew_moves_no_further_than_allowed(previous: float, wanted: float, rise: float, fall: float) -> None:
    assert previous - fall <= slew(previous, wanted, rise, fall) <= previous + rise


def test_vectors_are_limited_each_by_its_own() -> None:
    assert clamp_value((5.0, -5.0), (0.0, -1.0), 3.0) == ((3.0, -1.0), 1)
    assert clamp_value((1.0, 2.0), 0.0, 3.0) == ((1.0, 2.0), 0)
    assert slew_value((0.0, 0.0), (9.0, -9.0), 1.0, 2.0) == ((1.0, -2.0), 1)


def test_side_says_which_limit_cut() -> None:
    assert (side(5.0, 3.0), side(1.0, 3.0), side(3.0, 3.0)) == (1, -1, 0)
    assert clamp_value(-math.inf, 0.0, 1.0) == (0.0, -1)
