"""The Jury test against the roots themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyball.control.verification.jury import jury
from flyball.errors import InvalidValue


@given(st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=7))
def test_jury_agrees_with_the_roots(lower: list[float]) -> None:
    polynomial = [1.0, *lower]
    radius = float(np.abs(np.roots(polynomial)).max(initial=0.0))
    assume(abs(radius - 1.0) > 1e-6)
    assert jury(polynomial).stable == (radius < 1.0)


def test_a_root_on_the_circle_is_not_stable() -> None:
    assert not jury([1.0, -1.0]).stable
    assert not jury([1.0, 0.0, 1.0]).stable


def test_leading_zeros_do_not_count() -> None:
    assert jury([0.0, 0.0, 2.0, -1.0]) == jury([2.0, -1.0])


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [1.0, float("nan")]])
def test_what_is_no_polynomial_is_refused(bad: list[float]) -> None:
    with pytest.raises(InvalidValue, match="finite coefficients"):
        jury(bad)
