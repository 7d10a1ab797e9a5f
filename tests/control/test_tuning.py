"""The signal of an experiment stays in its bounds; candidates say why they are refused."""

from __future__ import annotations

import pytest

from flyball.control.gains import Gains
from flyball.control.models import first_order
from flyball.control.tuning import SignalKind, check_samples, designed, excitation, verified
from flyball.errors import InvalidValue

PLANT = first_order(0.26, 59.73)


@pytest.mark.parametrize("kind", ["staircase", "prbs"])
@pytest.mark.parametrize(("low", "high"), [(1.0, 30.0), (1e6, 4e6)])
def test_signals_stay_in_their_bounds(kind: SignalKind, low: float, high: float) -> None:
    played = excitation(kind, low, high, samples=40, hold=2)
    assert len(played) >= 40
    assert low <= min(played) < max(played) <= high


def test_a_signal_around_a_bound_is_refused() -> None:
    with pytest.raises(InvalidValue, match="needs room on both sides within 1 to 30"):
        excitation("prbs", 1.0, 30.0, samples=30, hold=3, centre=30.0)


@pytest.mark.parametrize("samples", [0, 11, 3601])
def test_an_experiment_has_a_length(samples: int) -> None:
    with pytest.raises(InvalidValue, match=f"from 12 to 3600 samples, got {samples}"):
        check_samples(samples)


def test_a_candidate_has_its_certificate_or_the_reason_why_there_is_none() -> None:
    good = designed("pi", "pi", PLANT, settling=6.0, overshoot=0.05)
    assert good.accepted
    assert set(good.config) == {"name", "kp", "ki"}
    impossible = designed("pi", "pi", first_order(0.99, 1.0, delay=9), settling=2.0, overshoot=0.0)
    assert not impossible.accepted
    assert impossible.config == {}
    assert "settles" in impossible.reason
    unstable = verified("default", Gains(-1.0, -1.0), PLANT)
    assert not unstable.accepted
    assert unstable.certificate is not None
    assert unstable.reason == unstable.certificate.reason
