"""Experiment signals: the shape asked for, and never beyond the limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.identification.signals import Limits, prbs, staircase, step
from flyball.control.models import Array
from flyball.errors import InvalidValue


def check(signal: Array, limits: Limits) -> None:
    assert signal.min() >= limits.low
    assert signal.max() <= limits.high
    changes = np.flatnonzero(np.diff(signal))
    assert np.abs(np.diff(signal)).max(initial=0.0) <= limits.max_change * (1.0 + 1e-9)
    assert np.diff(changes).min(initial=10**9) >= limits.hold


allowed = st.builds(
    Limits,
    low=st.just(-3.0),
    high=st.just(50.0),
    max_change=st.floats(0.3, 60.0) | st.just(math.inf),
    hold=st.integers(1, 7),
)
values = st.floats(-3.0, 50.0)


@given(limits=allowed, before=values, after=values, at=st.integers(0, 100))
def test_step_keeps_to_limits(limits: Limits, before: float, after: float, at: int) -> None:
    signal = step(2000, before, after, at, limits)
    assert signal.size == 2000
    check(signal, limits)
    assert (signal[:at] == before).all()
    assert signal[-1] == after


@given(limits=allowed, levels=st.lists(values, min_size=1, max_size=12))
def test_staircase_keeps_to_limits_and_visits_every_level(limits: Limits, levels: list[float]) -> None:
    signal = staircase(levels, limits)
    check(signal, limits)
    assert set(levels) <= set(signal.tolist())
    assert signal[0] == levels[0]
    assert signal[-1] == levels[-1]


@given(hold=st.integers(1, 9), seed=st.integers(-(2**40), 2**40), samples=st.integers(1, 3000))
def test_prbs_keeps_to_limits(hold: int, seed: int, samples: int) -> None:
    limits = Limits(0.0, 20.0, max_change=6.0, hold=hold)
    signal = prbs(samples, 10.0, 3.0, limits, seed)
    assert signal.size == samples
    check(signal, limits)
    assert set(signal.tolist()) <= {7.0, 13.0}
    assert (signal == prbs(samples, 10.0, 3.0, limits, seed)).all()


def test_prbs_is_white_and_balanced() -> None:
    """A full period of a maximal register: one more high than low, every autocorrelation −1/N."""
    n = 2**10 - 1
    signal = prbs(n, 0.0, 1.0, Limits(-1.0, 1.0), seed=77)
    assert abs(signal.sum()) == 1.0
    for lag in (1, 2, 5, 100, 500):
        assert float(signal @ np.roll(signal, lag)) == pytest.approx(-1.0)


def test_seeds_differ() -> None:
    limits = Limits(-1.0, 1.0)
    assert (prbs(100, 0.0, 1.0, limits, 1) != prbs(100, 0.0, 1.0, limits, 2)).any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Limits(5.0, 5.0), "low < high"),
        (lambda: Limits(0.0, 1.0, max_change=0.0), "max_change"),
        (lambda: Limits(0.0, 1.0, hold=0), "hold"),
        (lambda: step(10, 0.0, 9.0, 3, Limits(0.0, 5.0)), "after the step must be within 0 and 5, got 9"),
        (lambda: step(10, 0.0, 1.0, 11, Limits(0.0, 5.0)), "sample 11"),
        (lambda: staircase([], Limits(0.0, 5.0)), "must be at least one, got none"),
        (lambda: staircase([1.0, math.nan], Limits(0.0, 5.0)), "level 2 must be within 0 and 5, got nan"),
        (lambda: prbs(10, 4.0, 3.0, Limits(0.0, 5.0), 1), "centre + amplitude must be within 0 and 5, got 7"),
        (lambda: prbs(10, 3.0, 2.0, Limits(0.0, 5.0, max_change=1.0), 1), "amplitude of at most 0.5"),
        (lambda: prbs(10, 3.0, 0.0, Limits(0.0, 5.0), 1), "must be > 0"),
        (lambda: prbs(0, 3.0, 1.0, Limits(0.0, 5.0), 1), "must be >= 1, got"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as error:
        call()
    assert words in str(error.value)
