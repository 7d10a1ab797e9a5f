from __future__ import annotations

import random

import pytest

from flyball.control.controllers.pi import Pi
from flyball.control.controllers.self_tuning import SelfTuning, SelfTuningState
from flyball.control.gains import Gains
from flyball.control.models import first_order
from flyball.control.step import Sample
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

A, B = 0.26, 59.73
CAUTIOUS = SelfTuning(kp=0.0, ki=0.0005, settling=8.0, probe=0.3)


def run(
    loop: SelfTuning, samples: int, *, delay: int = 0, sigma: float = 5.0, seed: int = 1
) -> tuple[list[SelfTuningState], list[float], list[float]]:
    """States, measurements and moves on y(k+1) = A·y(k) + B·u(k−delay) with noise on the measurement."""
    rng = random.Random(seed)
    state, y, u = loop.initial(5.0), 400.0, 5.0
    under_way = [5.0] * delay
    states, seen, moves = [], [], []
    for k in range(samples):
        measured = y + rng.gauss(0.0, sigma)
        state, action = loop.step(state, Sample(float(k), 1.0, 400.0, measured, u))
        assert isinstance(action.command, float)
        moves.append(action.command - u)
        u = action.command
        under_way.append(u)
        states.append(state)
        seen.append(measured)
        y = A * y + B * under_way.pop(0)
    return states, seen, moves


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_every_swap_is_to_gains_that_are_accepted_on_the_true_plant(delay: int) -> None:
    loop = SelfTuning(kp=0.0, ki=0.0005, settling=8.0, probe=0.3, delay=delay)
    states, _, _ = run(loop, 400, delay=delay)
    used = {(state.kp, state.ki) for state in states if state.swaps}
    assert used, f"nothing was swapped: {states[-1].verdict}"
    for kp, ki in used:
        assert verify(first_order(A, B, delay), Gains(kp, ki)).verdict != "unstable"
    last = states[-1]
    assert verify(first_order(A, B, delay), Gains(last.kp, last.ki)).accepted


def test_learns_a_far_faster_loop_than_it_started_with() -> None:
    states, _, _ = run(CAUTIOUS, 300)
    tuned = Pi(states[-1].kp, states[-1].ki)
    after = {}
    for name, pi in (("cautious", Pi(CAUTIOUS.kp, CAUTIOUS.ki)), ("tuned", tuned)):
        steps = close_loop(pi, [800.0] * 40, a=A, b=B, command=400.0 * 0.74 / B, measurement=400.0)
        after[name] = next(
            k for k in range(40) if all(abs(s.measurement - 800.0) < 16.0 for s in steps[k:]) or k == 39
        )
    assert after["tuned"] <= 10 < after["cautious"]


def test_follows_a_plant_whose_gain_changes() -> None:
    """Twice the gain: the tuned integral gain halves, and stays where the true plant accepts it."""
    loop, rng = CAUTIOUS, random.Random(3)
    state, y, u, before = loop.initial(5.0), 400.0, 5.0, 0.0
    for k in range(1200):
        b = B if k < 400 else 2.0 * B
        state, action = loop.step(state, Sample(float(k), 1.0, 400.0, y + rng.gauss(0.0, 5.0), u))
        assert isinstance(action.command, float)
        u = action.command
        y = A * y + b * u
        if k == 399:
            before = state.ki
    assert state.ki == pytest.approx(before / 2.0, rel=0.15)
    assert verify(first_order(A, 2.0 * B), Gains(state.kp, state.ki)).accepted


def test_swaps_without_a_bump() -> None:
    """No move is larger than integral step, change of error and probe explain: a swap adds nothing."""
    states, seen, moves = run(CAUTIOUS, 300)
    swaps = [k for k in range(1, 300) if states[k].swaps > states[k - 1].swaps]
    assert swaps
    for k in swaps:
        error = 400.0 - seen[k]
        assert abs(moves[k] - states[k].ki * error) <= 2.0 * CAUTIOUS.probe + 1e-9


def test_does_not_swap_for_gains_that_hardly_differ() -> None:
    """Without noise the first good model is final: later designs give the same gains."""
    states, _, _ = run(CAUTIOUS, 600, sigma=0.0)
    assert states[-1].swaps == states[300].swaps
    assert states[-1].judged_at > states[300].judged_at
    assert states[-1].verdict.startswith("accepted")


def test_keeps_its_gains_when_nothing_can_be_learnt() -> None:
    """At rest without a probe, closed-loop data show the controller, not the plant."""
    states, _, _ = run(SelfTuning(kp=0.001, ki=0.002), 400)
    assert {(state.kp, state.ki) for state in states} == {(0.001, 0.002)}


def test_pi_never_sees_the_probe() -> None:
    """On a plant that ignores its actuator and a measurement at the goal, only the probe moves the command."""
    loop = SelfTuning(kp=1.0, ki=1.0, probe=0.25)
    state, u, commands = loop.initial(10.0), 10.0, set()
    for k in range(200):
        state, action = loop.step(state, Sample(float(k), 1.0, 400.0, 400.0, u))
        assert isinstance(action.command, float)
        u = action.command
        commands.add(round(u, 9))
    assert commands == {9.75, 10.25}
    assert state.swaps == 0


@pytest.mark.parametrize(
    ("field", "value"), [("settling", 0.0), ("overshoot", 1.0), ("delay", -1), ("probe", -0.1)]
)
def test_refuses_bad_parameters(field: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=rf"SelfTuning\.{field}"):
        SelfTuning(**{"kp": 0.0, "ki": 0.1, field: value})  # type: ignore[arg-type]  # a user's mistake


def test_where_only_the_gain_is_unknown_a_drift_is_followed_without_probing() -> None:
    """Three times the gain within a minute, on a plant that forgets within a sample; no probe, no constant."""
    loop = SelfTuning(kp=-0.0016, ki=0.006, settling=6.0, every=10, forgetting=0.9, offset=False, pole=0.0)
    rng = random.Random(4)
    state, u, rates = loop.initial(1.0), 1.0, []
    for k in range(120):
        b = 20.0 * 3.0 ** min(1.0, max(0.0, (k - 40) / 60.0))
        y = b * u * (1.0 + rng.gauss(0.0, 0.03))
        rates.append(b * u)
        state, action = loop.step(state, Sample(float(k), 1.0, 400.0, y, u))
        assert isinstance(action.command, float)
        u = action.command
        assert verify(first_order(0.0, b), Gains(state.kp, state.ki)).accepted
    assert max(abs(rate - 400.0) for rate in rates[30:]) < 60.0
    assert state.swaps >= 6


def test_a_pole_is_one_of_a_stable_plant() -> None:
    with pytest.raises(InvalidValue, match="pole"):
        SelfTuning(kp=0.0, ki=0.01, pole=1.0)
