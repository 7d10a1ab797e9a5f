"""The certificate: the sources' figures, and its words against a simulation that knows nothing of polynomials."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyball.control.design.nearest import suggest
from flyball.control.gains import AnyGains, Gains, StateGains
from flyball.control.models import Arx, first_order
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue

PREFETCH = first_order(0.26, 59.73)
FLOW = first_order(0.985, -134.0)
FLOW_LATE = first_order(0.985, -134.0, delay=1)


def simulate(plant: Arx, gains: AnyGains, samples: int, setpoint: float = 1.0) -> list[float]:
    """The loop in time, straight from the formulas: no polynomial, no matrix."""
    ys = [0.0] * plant.order
    us = [0.0] * (plant.delay + len(plant.b) + 8)
    total, before, filtered = 0.0, 0.0, 0.0
    out = []
    for _ in range(samples):
        y = ys[-1]
        out.append(y)
        error = setpoint - y
        total += error
        if isinstance(gains, Gains):
            f = gains.derivative_filter
            filtered = f * filtered + (1.0 - f) * gains.kd * (error - before)
            u = gains.kp * error + gains.ki * total + filtered + gains.feed_forward * setpoint
        else:
            u = gains.ki * total
            u -= sum(k * (ys[-1 - i] if i < len(ys) else 0.0) for i, k in enumerate(gains.ky))
            u -= sum(k * us[-j] for j, k in enumerate(gains.ku, start=1))
        before = error
        us.append(u)
        pushed = sum(b * us[-1 - plant.delay - j] for j, b in enumerate(plant.b))
        ys.append(sum(a * ys[-1 - i] for i, a in enumerate(plant.a)) + pushed)
        if abs(ys[-1]) > 1e12:
            break
    return out


def test_prefetch_pi_is_accepted() -> None:
    found = verify(PREFETCH, Gains(-0.0016, 0.0060))
    assert found.verdict == "accepted"
    assert found.method == "proven"
    assert found.poles[0] == pytest.approx(0.5 + 0.33j, abs=0.01)
    assert found.steady_state_error == 0.0


def test_prefetch_pid_has_the_poles_it_was_made_for() -> None:
    found = verify(PREFETCH, Gains(0.0017761, 0.0058096, 0.0018417))
    assert sorted(found.poles, key=lambda p: (p.real, p.imag)) == [
        pytest.approx(-0.356, abs=1e-3),
        pytest.approx(0.527 - 0.178j, abs=1e-3),
        pytest.approx(0.527 + 0.178j, abs=1e-3),
    ]


@pytest.mark.parametrize(
    ("kp", "stable"), [(-0.01240, False), (-0.01238, True), (0.02108, True), (0.02111, False)]
)
def test_prefetch_p_is_stable_in_the_printed_range(kp: float, stable: bool) -> None:
    assert (verify(PREFETCH, Gains(kp)).verdict != "unstable") == stable


def test_prefetch_p_leaves_an_offset() -> None:
    """Kp = 0.02 settles at 62 % of the goal."""
    assert verify(PREFETCH, Gains(0.02)).steady_state_error == pytest.approx(0.38, abs=0.005)


def test_flow_printed_ki_is_unstable_with_a_pole_at_4() -> None:
    found = verify(FLOW, Gains(-0.00614, 0.02168))
    assert found.verdict == "unstable"
    assert found.radius == pytest.approx(4.03, abs=0.005)
    assert "4.03" in found.reason
    assert found.gain_margin is None
    nearest = suggest(FLOW, found.gains)
    assert nearest is not None
    assert verify(FLOW, nearest).accepted


def test_flow_corrected_gains_are_fragile_without_delay_and_unstable_with_one() -> None:
    gains = Gains(-0.00614, -0.00799)
    alone = verify(FLOW, gains)
    assert alone.verdict == "fragile"
    assert alone.sensitivity_peak == pytest.approx(3.2, abs=0.05)
    assert "sensitivity peak 3.17 exceeds 2.5" in alone.reason
    nearest = suggest(FLOW, gains)
    assert nearest is not None
    assert verify(FLOW, nearest).accepted
    late = verify(FLOW_LATE, gains)
    assert late.verdict == "unstable"
    assert late.radius == pytest.approx(1.515, abs=0.001)


def test_flow_best_pi_with_delay_is_accepted() -> None:
    found = verify(FLOW_LATE, Gains(-0.00221, -0.000315))
    assert found.verdict == "accepted"
    assert found.radius == pytest.approx(0.675, abs=0.001)
    assert found.settling == pytest.approx(10.0, abs=0.3)


def hundredths(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers that are zero or large enough to act within the length of a simulation."""
    return st.integers(low, high).map(lambda n: n / 100)


gains_of_b = hundredths(-150, 150)


@st.composite
def loops(draw: st.DrawFn) -> tuple[Arx, AnyGains]:
    order = draw(st.integers(1, 2))
    a = tuple(draw(st.lists(hundredths(-95, 110), min_size=order, max_size=order)))
    size = draw(st.sampled_from([0.01, 1.0, 134.0]))
    b = tuple(
        size * draw(hundredths(10, 100)) * sign for sign in draw(st.sampled_from([(1.0,), (-1.0,), (1.0, 0.5)]))
    )
    plant = Arx(a, b, draw(st.integers(0, 3)))
    one = [draw(gains_of_b) / size for _ in range(3)]
    if draw(st.booleans()):
        return plant, StateGains(one[0], (one[1],), (draw(hundredths(-80, 80)),))
    return plant, Gains(one[0], one[1] / 2, one[2] / 2, draw(st.sampled_from([0.0, 0.5])))


@given(loops())
def test_the_stability_verdict_is_that_of_a_simulation(loop: tuple[Arx, AnyGains]) -> None:
    plant, gains = loop
    found = verify(plant, gains)
    assume(not 0.97 < found.radius < 1.03)  # a finite run cannot tell those apart
    # A mode that no setpoint excites does not show in a simulation from rest.
    outputs = simulate(plant, gains, 1500)
    late = max(map(abs, outputs[-50:]))
    if found.verdict == "unstable":
        settled = len(outputs) == 1500 and max(outputs[-50:]) - min(outputs[-50:]) < 1e-9 * max(1.0, late)
        assert not settled or _hidden(plant, gains)
    else:
        assert max(outputs[-50:]) - min(outputs[-50:]) < 1e-6 * max(1.0, late)
        assert found.steady_state_error is not None
        assert 1.0 - outputs[-1] == pytest.approx(found.steady_state_error, abs=1e-6)


def _hidden(plant: Arx, gains: AnyGains) -> bool:
    """Whether the setpoint has no way to the output at all."""
    controller = gains.polynomials()
    return not np.any(np.convolve(controller.reference, plant.numerator()))


def test_overshoot_and_settling_are_those_of_a_simulation() -> None:
    seed, compared = 551, 0
    rng = np.random.default_rng(seed)
    for case in range(600):
        plant = first_order(rng.uniform(0.0, 1.0), rng.choice([-134.0, 0.5]), int(rng.integers(0, 3)))
        kp, ki, kd = rng.uniform((0.0, 0.0, 0.0), (0.9, 0.5, 0.3)) / plant.b[0]
        gains = (
            Gains(kp, ki, kd, float(rng.choice([0.0, 0.4]))) if rng.integers(2) else StateGains(ki, (kp,), (0.3,))
        )
        found = verify(plant, gains)
        if found.radius > 0.97:
            continue
        compared += 1
        where = f"seed {seed}, case {case}: {plant}, {gains}"
        outputs = np.array(simulate(plant, gains, 800))
        relative = outputs / outputs[-1]
        assert found.overshoot == pytest.approx(max(0.0, relative.max() - 1.0), abs=1e-6), where
        outside = np.flatnonzero(np.abs(relative - 1.0) > 0.02)
        assert found.settling_step == (outside[-1] + 1 if outside.size else 0), where
    assert compared > 200


def test_a_conditionally_stable_loop_must_bear_half_its_gain() -> None:
    found = verify(first_order(1.2, 1.0), Gains(0.3))
    assert found.verdict == "fragile"
    assert "when the gain falls to 0.67" in found.reason
    assert verify(first_order(1.2, 1.0), Gains(0.8)).verdict == "accepted"


def test_uncertainty_of_the_model_makes_gains_fragile() -> None:
    certain = [[1e-6, 0.0], [0.0, 1e-2]]
    vague = [[0.02, 0.0], [0.0, 3000.0]]  # b may be 60 ± 135: its sign is not known
    assert verify(PREFETCH, Gains(-0.0016, 0.0060), covariance=certain).verdict == "accepted"
    found = verify(PREFETCH, Gains(-0.0016, 0.0060), covariance=vague)
    assert found.verdict == "fragile"
    assert "confidence region" in found.reason
    assert found.robustness is not None
    assert 0.0 < found.robustness.stable_fraction < 1.0


def test_gains_on_a_dead_plant_are_not_stable() -> None:
    """b = 0: the integrator runs away unseen."""
    assert verify(first_order(0.5, 0.0), Gains(0.1, 0.1)).verdict == "unstable"


def test_the_jury_test_is_on_the_certificate() -> None:
    assert verify(PREFETCH, Gains(-0.0016, 0.0060)).jury.stable
    assert not verify(FLOW, Gains(-0.00614, 0.02168)).jury.stable


def test_nearest_gains_exist_for_state_feedback() -> None:
    found = verify(FLOW_LATE, StateGains(-0.01, (-0.02,), (0.5,)))
    assert found.verdict == "unstable"
    nearest = suggest(FLOW_LATE, found.gains)
    assert isinstance(nearest, StateGains)
    assert verify(FLOW_LATE, nearest).accepted


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gains_must_be_numbers(value: float) -> None:
    with pytest.raises(InvalidValue, match="finite"):
        Gains(value)
    with pytest.raises(InvalidValue, match="finite"):
        StateGains(value, (1.0,))


def test_feed_forward_changes_the_response_but_not_stability() -> None:
    plain, helped = (verify(PREFETCH, Gains(0.001, 0.003, feed_forward=f)) for f in (0.0, 1.0 / PREFETCH.gain))
    assert plain.poles == helped.poles
    assert plain.sensitivity_peak == helped.sensitivity_peak
    assert helped.overshoot is not None
    assert plain.overshoot is not None
    assert helped.overshoot > plain.overshoot
