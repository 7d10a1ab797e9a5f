from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.guard.gain_watch import Spell, follow, judge, slope


def spell_of(commands: list[float], measurements: list[float], side: int = 1) -> Spell:
    spell = None
    for u, y in zip(commands, measurements, strict=True):
        spell = follow(spell, side, u, y)
    assert spell is not None
    return spell


@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=4, max_size=40))
def test_slope_is_that_of_least_squares(points: list[tuple[float, float]]) -> None:
    u, y = np.array(points).T
    if np.ptp(u) < 0.1:
        return
    design = np.column_stack([u, np.ones_like(u)])
    (expected, _), rest, *_ = np.linalg.lstsq(design, y, rcond=None)
    found = slope(spell_of(list(u), list(y)))
    assert found is not None
    assert found[0] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    if rest.size:
        error = np.sqrt(rest[0] / (len(u) - 2) / np.sum((u - u.mean()) ** 2))
        assert found[1] == pytest.approx(error, rel=1e-3, abs=1e-4)


def test_a_command_that_rests_says_nothing() -> None:
    assert slope(spell_of([5.0] * 10, list(range(10)))) is None


def test_a_spell_ends_with_the_error_and_begins_anew_on_the_other_side() -> None:
    spell = spell_of([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert follow(spell, 0, 4.0, 4.0) is None
    turned = follow(spell, -1, 4.0, 4.0)
    assert turned is not None
    assert (turned.samples, turned.start_command) == (1, 4.0)


@pytest.mark.parametrize(("gain", "finding"), [(0.0, "lost"), (5.0, None), (-5.0, "inverted")])
@pytest.mark.parametrize("side", [1, -1])
def test_tells_lost_inverted_and_working_gains_apart(gain: float, finding: str | None, side: int) -> None:
    """A command that pushes towards the goal for 20 samples, with noise; 60 units are missing at the end."""
    rng = random.Random(4)
    commands = [10.0 + side * k for k in range(20)]
    measurements = [100.0 + gain * side * k + rng.gauss(0.0, 2.0) for k in range(20)]
    assert judge(spell_of(commands, measurements, side), commands[-1], side * 60.0) == finding
