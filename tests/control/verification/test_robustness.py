"""The confidence region: its points lie where they should, and the loop is judged on each as verify would."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from flyball.control.gains import Gains, StateGains
from flyball.control.models import Arx, first_order
from flyball.control.verification.robustness import robustness
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue


@pytest.mark.parametrize("gains", [Gains(0.4, 0.2), Gains(0.3, 0.1, 0.1), StateGains(0.2, (0.3, 0.1), (0.2,))])
@pytest.mark.parametrize("plant", [first_order(0.8, 1.0, 1), Arx((1.1, -0.3), (0.6, 0.2), 2)])
def test_the_worst_model_is_as_bad_as_verify_says(plant: Arx, gains: Gains | StateGains) -> None:
    size = len(plant.a) + len(plant.b)
    found = robustness(plant, gains, 0.01 * np.eye(size))
    assert verify(found.worst_plant, gains).radius == pytest.approx(found.worst_radius, abs=1e-6)
    assert found.worst_radius >= verify(plant, gains).radius - 1e-9
    # It lies on the surface of the region, or on the shell half way.
    shift = np.array([*found.worst_plant.a, *found.worst_plant.b]) - np.array([*plant.a, *plant.b])
    distance = float(shift @ shift) / 0.01
    assert min(abs(distance - share * chi2.ppf(0.95, size)) for share in (1.0, 0.25)) < 1e-6


def test_the_offset_may_be_the_last_row() -> None:
    plant, gains = first_order(0.26, 59.73), Gains(-0.0016, 0.006)
    two = np.array([[0.001, 0.01], [0.01, 4.0]])
    three = np.zeros((3, 3))
    three[:2, :2], three[2, 2] = two, 100.0
    assert robustness(plant, gains, two) == robustness(plant, gains, three)


def test_a_wider_region_is_worse() -> None:
    plant, gains = first_order(0.9, 1.0), Gains(0.8, 0.2)
    radii = [robustness(plant, gains, size * np.eye(2)).worst_radius for size in (0.001, 0.01, 0.1)]
    assert radii == sorted(radii)
    assert radii[0] < 1.0 < radii[2]


def test_what_is_no_covariance_is_refused() -> None:
    with pytest.raises(InvalidValue, match="square matrix for the 2 coefficients"):
        robustness(first_order(0.9, 1.0), Gains(0.1), [[1.0]])
    with pytest.raises(InvalidValue, match="must be finite"):
        robustness(first_order(0.9, 1.0), Gains(0.1), [[np.nan, 0.0], [0.0, 1.0]])
    with pytest.raises(InvalidValue, match="between 0 and 1"):
        robustness(first_order(0.9, 1.0), Gains(0.1), np.eye(2), confidence=1.0)
