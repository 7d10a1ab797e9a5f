"""Design: the published gains, specifications met, limits reported, and all results accepted by verify."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.design.design import FragileDesign, ImpossibleSpecification, UnstableDesign, design
from flyball.control.gains import Gains, Kind, StateGains
from flyball.control.models import Arx, first_order
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue

PREFETCH = first_order(0.26, 59.73)
FLOW = first_order(0.985, -134.0)
FLOW_LATE = first_order(0.985, -134.0, delay=1)
PAIR = [0.046 + 0.4j, 0.046 - 0.4j]


def gains(of: object) -> Gains:
    assert isinstance(of, Gains)
    return of


def test_prefetch_pi_by_poles() -> None:
    """The poles of the printed gains give them back: Kp = (a − |p|²)/b, Ki = (1 + a − 2·Re p)/b − Kp."""
    poles = verify(PREFETCH, Gains(-0.0016, 0.0060)).poles
    found = gains(design(PREFETCH, "pi", poles=poles).gains)
    assert found.kp == pytest.approx(-0.0016)
    assert found.ki == pytest.approx(0.0060)


def test_prefetch_pid_by_poles() -> None:
    found = gains(design(PREFETCH, "pid", poles=[0.527 + 0.178j, 0.527 - 0.178j, -0.356]).gains)
    assert found.kp == pytest.approx(0.0017761, rel=0.02)
    assert found.ki == pytest.approx(0.0058096, rel=0.02)
    assert found.kd == pytest.approx(0.0018417, rel=0.02)


def test_flow_pi_by_poles_is_fragile_and_needs_leave() -> None:
    with pytest.raises(
        FragileDesign, match=r"sensitivity peak 3.17.*nearest gains that pass.*allow_fragile permits it"
    ) as refused:
        design(FLOW, "pi", poles=PAIR)
    assert refused.value.nearest is not None
    found = design(FLOW, "pi", poles=PAIR, allow_fragile=True)
    assert gains(found.gains).kp == pytest.approx(-0.00614, abs=1e-5)
    assert gains(found.gains).ki == pytest.approx(-0.00799, abs=1e-5)
    assert found.certificate.verdict == "fragile"


def test_flow_the_limit_of_a_pi_with_delay_is_reported() -> None:
    with pytest.raises(ImpossibleSpecification) as refused:
        design(FLOW_LATE, "pi", settling=5, overshoot=0.1)
    assert str(refused.value) == "with delay 1 no PI settles in under 10 samples here; state feedback does in 5"
    assert design(FLOW_LATE, "pi", settling=10, overshoot=0.1).certificate.accepted
    found = design(FLOW_LATE, "state", settling=5, overshoot=0.1)
    assert found.certificate.accepted
    assert found.certificate.radius < 0.48


def test_flow_the_best_pi_with_delay() -> None:
    """Three poles sum to 1 + a whatever the gains, so none can have all below (1 + a)/3 = 0.662."""
    found = design(FLOW_LATE, "pi", settling=10, overshoot=0.5)
    assert 1.985 / 3 <= found.certificate.radius < 0.676
    assert gains(found.gains).kp == pytest.approx(-0.00221, rel=0.05)
    assert gains(found.gains).ki == pytest.approx(-0.000315, rel=0.15)


def test_poles_that_are_unstable_are_refused() -> None:
    with pytest.raises(UnstableDesign, match="outside the unit circle"):
        design(PREFETCH, "pi", poles=[1.2, 0.3])
    # With a delay two poles can be placed inside and the third still falls outside.
    with pytest.raises(UnstableDesign, match="outside the unit circle"):
        design(FLOW_LATE, "pi", poles=PAIR)


def test_nothing_acts_before_the_delay_is_over() -> None:
    with pytest.raises(ImpossibleSpecification, match="no controller has any effect in under 6 samples"):
        design(first_order(0.5, 1.0, delay=5), "state", settling=5)


def test_state_feedback_places_every_pole() -> None:
    wanted = [0.5 + 0.2j, 0.5 - 0.2j, 0.3, 0.2, -0.1]
    plant = Arx((0.9, -0.2), (1.0, 0.4), delay=1)
    found = design(plant, "state", poles=wanted, allow_fragile=True)
    for pole in wanted:
        assert min(abs(pole - placed) for placed in found.poles) < 1e-6
    assert isinstance(found.gains, StateGains)
    assert (len(found.gains.ky), len(found.gains.ku)) == (2, 2)
    assert found.certificate.steady_state_error == 0.0


def test_a_specification_of_settling_and_overshoot_gives_the_text_book_poles_where_they_hold() -> None:
    plant = first_order(0.9, 1.0, delay=10)
    found = design(plant, "pi", settling=60, overshoot=0.1)
    radius = math.exp(-4 / 60)
    pair = cmath.rect(radius, math.pi * math.log(radius) / math.log(0.1))
    assert min(abs(pole - pair) for pole in found.poles) < 1e-6


def test_a_p_with_the_least_steady_error() -> None:
    found = design(PREFETCH, "p", settling=5, overshoot=0.1)
    weaker = verify(PREFETCH, Gains(gains(found.gains).kp * 0.8))
    assert found.certificate.accepted
    assert found.certificate.steady_state_error is not None
    assert weaker.steady_state_error is not None
    assert found.certificate.steady_state_error < weaker.steady_state_error


def test_feed_forward_is_one_over_the_gain() -> None:
    found = design(PREFETCH, "pi", poles=[0.5, 0.4], feed_forward=True)
    assert gains(found.gains).feed_forward == pytest.approx(0.74 / 59.73)
    integrating = design(first_order(1.0, -60.3), "pi", poles=[0.6, 0.6], feed_forward=True)
    assert gains(integrating.gains).feed_forward == 0.0
    with pytest.raises(InvalidValue, match="feed_forward needs the controller p, pi or pid"):
        design(PREFETCH, "state", settling=5, feed_forward=True)


def test_an_overshoot_out_of_reach_is_said() -> None:
    """An integrating plant under PI must overshoot: the sum of errors has to return to zero."""
    found = design(first_order(1.0, -60.3), "pi", settling=6, overshoot=0.0)
    assert found.certificate.accepted
    assert found.certificate.settling is not None
    assert found.certificate.settling <= 6.5
    assert "overshoots by" in found.note


@settings(max_examples=40)
@given(
    a=st.floats(0.0, 1.0),
    b=st.sampled_from([59.73, -134.0, 0.01]),
    delay=st.integers(0, 4),
    kind=st.sampled_from(["p", "pi", "pid", "state"]),
    settling=st.floats(2.0, 60.0),
    overshoot=st.floats(0.0, 0.5),
)
def test_what_design_returns_verify_accepts(
    a: float, b: float, delay: int, kind: Kind, settling: float, overshoot: float
) -> None:
    plant = first_order(a, b, delay)
    try:
        found = design(plant, kind, settling=settling, overshoot=overshoot)
    except ImpossibleSpecification as refused:
        assert any(word in str(refused) for word in ("settles in", "any effect", "makes this plant stable"))  # noqa: PT017
        return
    again = verify(plant, found.gains)
    assert again.verdict == "accepted"
    assert again.settling is not None
    assert again.settling <= settling + min(0.5, 0.08 * settling) + 1e-9
    assert again.settling_step is not None
    assert again.settling_step <= settling + min(0.5, 0.08 * settling) + 1e-9 or "step" in found.note
    assert again.overshoot is not None
    assert again.overshoot <= overshoot + 0.005 or found.note
    assert again.poles == found.poles


@given(
    st.floats(-0.9, 1.1),
    st.floats(0.1, 100.0),
    st.floats(0.0, 0.95),
    st.floats(0.0, math.pi),
    st.floats(-0.9, 0.9),
)
def test_poles_are_placed_exactly(a: float, b: float, radius: float, angle: float, third: float) -> None:
    plant = first_order(a, -b)
    pair = [cmath.rect(radius, angle), cmath.rect(radius, -angle)]
    specifications: list[tuple[Kind, list[complex]]] = [
        ("pi", pair),
        ("pid", [*pair, complex(third)]),
        ("p", [complex(third)]),
    ]
    for kind, poles in specifications:
        try:
            found = design(plant, kind, poles=poles, allow_fragile=True)
        except UnstableDesign:
            pytest.fail(f"poles {poles} are inside the circle")
        # Compared as polynomials: roots of a multiple pole are ill conditioned, coefficients are not.
        size = len(poles)
        achieved = np.real(np.poly(found.poles))[: size + 1]
        wanted = np.real(np.poly(poles))
        assert achieved == pytest.approx(wanted[: achieved.size], abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"poles": [0.5]}, "PI places 2 poles, got 1"),
        ({"poles": [0.5 + 0.1j, 0.3]}, "conjugate pairs"),
        ({"poles": [math.nan, 0.3]}, "finite"),
        ({}, "a specification needs poles"),
        ({"settling": -1.0}, "samples > 0"),
        ({"settling": math.nan}, "samples > 0"),
        ({"settling": 5.0, "overshoot": 1.5}, "fraction >= 0 and < 1"),
        ({"settling": 5.0, "poles": [0.5, 0.5]}, "got both"),
    ],
)
def test_an_invalid_specification_is_one_sentence(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        design(PREFETCH, "pi", **arguments)  # type: ignore[arg-type]  # deliberately wrong


def test_a_plant_without_effect_is_refused() -> None:
    with pytest.raises(InvalidValue, match="no effect"):
        design(first_order(0.5, 0.0), "pi", settling=5)


def test_a_step_that_settles_later_than_its_poles_is_said() -> None:
    """A triple pole at 0.476 decays by sample 5 alone, and the step needs longer."""
    found = design(FLOW_LATE, "state", settling=5, overshoot=0.1)
    assert found.certificate.settling_step is not None
    assert found.certificate.settling_step > 6
    assert f"settles in {found.certificate.settling_step}" in found.note
    slower = design(FLOW_LATE, "state", settling=10, overshoot=0.1)
    assert slower.certificate.settling_step is not None
    assert slower.certificate.settling_step <= 10
    assert slower.note == ""


@pytest.mark.parametrize("seed", range(6))
def test_a_design_for_an_uncertain_model_is_stable_on_the_models_it_allows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = float(rng.uniform(0.3, 0.9)), float(rng.uniform(0.5, 5.0))
    covariance = np.diag([0.04 * rng.uniform(0.1, 1.0), (0.3 * b * rng.uniform(0.1, 1.0)) ** 2])
    try:
        found = design(first_order(a, b), "pi", settling=20, overshoot=0.1, covariance=covariance)
    except FragileDesign as refused:
        assert "confidence region" in str(refused)  # noqa: PT017
        return
    assert found.certificate.robustness is not None
    assert found.certificate.robustness.stable_fraction == 1.0
    for _ in range(200):
        angle, size = rng.uniform(0.0, 2.0 * np.pi), 2.4477 * np.sqrt(rng.random())  # within the 95 % ellipse
        plant = first_order(
            a + size * np.cos(angle) * np.sqrt(covariance[0, 0]),
            b + size * np.sin(angle) * np.sqrt(covariance[1, 1]),
        )
        assert verify(plant, found.gains).verdict != "unstable", f"seed {seed}: {plant}"


def test_a_specification_that_an_uncertain_model_does_not_bear_is_refused_with_the_reason() -> None:
    plant = first_order(0.26, 59.73)
    assert design(plant, "pi", settling=4).certificate.accepted
    with pytest.raises(FragileDesign, match="confidence region"):
        design(plant, "pi", settling=4, covariance=[[0.2, 0.0], [0.0, 900.0]])
