from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.guard.guard import Guard, GuardState, Verdict
from flyball.control.state import from_plain, to_plain
from flyball.control.step import Action, Controller, Sample
from flyball.control.wrappers import Saturation
from flyball.errors import InvalidValue

PUBLISHED = Saturation(Pi(kp=-0.0016, ki=0.0060), low=1.0, high=22.0)
A, B = 0.26, 59.73


def named(**config: Any) -> Guard:
    return Guard(measurement_name="the rate", command_name="the window", **config)


def watch(
    guard: Guard,
    controller: Controller[Any],
    samples: int,
    *,
    goal: Callable[[int], float] = lambda _k: 400.0,
    gain: Callable[[int], float] = lambda _k: B,
    load: Callable[[int], float] = lambda _k: 0.0,
    sigma: float = 0.0,
    seed: int = 1,
    command: float = 5.0,
    y: float = 400.0,
) -> list[Verdict]:
    """y(k+1) = A·y + gain(k)·u + load(k) with noise under controller and guard."""
    rng = random.Random(seed)
    state, seen, u, verdicts = controller.initial(command), guard.initial(), command, []
    for k in range(samples):
        sample = Sample(float(k), 1.0, goal(k), y + rng.gauss(0.0, sigma), u)
        state, action = controller.step(state, sample)
        seen, verdict = guard.check(seen, sample, action)
        verdicts.append(verdict)
        if action.command is not None:
            assert isinstance(action.command, float)
            u = action.command
        y = A * y + gain(k) * u + load(k)
    return verdicts


def kinds(verdicts: list[Verdict]) -> set[str]:
    return {notice.kind for verdict in verdicts for notice in verdict.notices}


@pytest.mark.parametrize("sigma", [0.0, 10.0, 40.0, 95.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_alarm_on_a_well_tuned_loop_whatever_the_noise(sigma: float, seed: int) -> None:
    verdicts = watch(Guard(), PUBLISHED, 8000, sigma=sigma, seed=seed)
    assert kinds(verdicts) == set(), f"seed {seed}, sigma {sigma}: {next(v for v in verdicts if v.notices).reason}"


@pytest.mark.parametrize("memory", [0.5, 0.95])
def test_no_alarm_on_noise_that_has_a_memory(memory: float) -> None:
    rng, noise = random.Random(11), [0.0]
    for _ in range(8000):
        noise.append(memory * noise[-1] + rng.gauss(0.0, 60.0 * (1.0 - memory**2) ** 0.5))
    verdicts = watch(Guard(), PUBLISHED, 8000, load=lambda k: noise[k], sigma=5.0)
    assert kinds(verdicts) == set()


def test_no_alarm_on_goal_steps_and_loads_that_the_loop_can_follow() -> None:
    """The command moves a lot while the measurement stays at the goal: that is a loop doing its work."""
    verdicts = watch(
        Guard(),
        PUBLISHED,
        6000,
        goal=lambda k: (400.0, 800.0, 300.0)[k // 97 % 3],
        load=lambda k: 150.0 if k // 61 % 2 else -100.0,
        sigma=20.0,
    )
    assert kinds(verdicts) == set()


def test_no_alarm_on_the_offset_of_a_p_loop() -> None:
    assert kinds(watch(Guard(), P(0.005, bias=0.0), 500, command=0.0, y=0.0)) == set()


@pytest.mark.parametrize("sigma", [0.0, 8.0])
def test_lost_gain_retreats_with_the_reason(sigma: float) -> None:
    """The plant no longer answers at all, and drops to a third of its rate."""
    verdicts = watch(
        named(),
        Pi(-0.0016, 0.006),
        200,
        gain=lambda k: B if k < 50 else 0.0,
        load=lambda k: 100.0 * (k >= 50),
        sigma=sigma,
    )
    assert kinds(verdicts[:50]) == set()
    first = next(v for v in verdicts if v.notices)
    assert first.response == "retreat"
    assert first.command == pytest.approx(400.0 * (1 - A) / B, rel=0.05)  # where the loop was well
    assert first.notices[0].kind == "lost"
    assert first.notices[0].fresh
    assert "the rate did not answer while the window went from" in first.reason
    assert "the goal is 400" in first.reason


def test_inverted_gain_retreats_to_the_last_good_command() -> None:
    """From sample 300 on a larger window gives less: the loop runs away, and the guard takes it back."""

    verdicts = watch(
        named(patience=10),
        Pi(-0.0016, 0.006),
        400,
        gain=lambda k: B if k < 300 else -0.2 * B,
        load=lambda k: 0.0 if k < 300 else 340.0,
        sigma=5.0,
    )
    assert kinds(verdicts[:300]) == set()
    retreat = next(v for v in verdicts if v.response == "retreat")
    assert retreat.notices[0].kind == "inverted"
    assert "wrong sign" in retreat.reason
    assert retreat.command == pytest.approx(400.0 * (1.0 - A) / B, rel=0.1)


def test_unreachable_goal_is_reported() -> None:
    verdicts = watch(named(), PUBLISHED, 100, goal=lambda _k: 5000.0, y=400.0)
    assert kinds(verdicts) == {"unreachable"}
    last = verdicts[-1]
    assert last.response == "alert"
    assert "the window has been at its upper limit" in last.reason
    assert "the goal 5000 is out of reach" in last.reason
    assert [n.fresh for v in verdicts for n in v.notices].count(True) == 1


def test_long_saturation_at_the_goal_is_reported_too() -> None:
    """Within tolerance, but the limit holds the loop: no reserve is left."""
    full = 22.0 * B / (1.0 - A)
    verdicts = watch(Guard(saturated_after=50), PUBLISHED, 100, goal=lambda _k: full * 1.02, y=full, command=22.0)
    assert kinds(verdicts) == {"saturated"}
    assert verdicts[-1].response == "alert"


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_missing_metric_freezes_and_recovers(missing: float | None) -> None:
    guard = named(missing_after=3)
    state, responses = guard.initial(), []
    for y in (400.0, missing, missing, missing, missing, 400.0):
        state, verdict = guard.check(state, Sample(0.0, 1.0, 400.0, y, 5.0), Action(5.0))
        responses.append(verdict.response)
    assert responses == ["ignore", "ignore", "ignore", "freeze", "freeze", "ignore"]


def test_missing_set_point_is_named() -> None:
    guard = Guard(missing_after=1)
    _, verdict = guard.check(guard.initial(), Sample(0.0, 1.0, float("nan"), 1.0, 5.0), Action(None))
    assert "the set point is nan" in verdict.reason


def test_a_stale_metric_is_distinguished_from_a_quiet_one() -> None:
    """The same value for ever: suspicious only off the goal and while the command moves."""
    stuck = watch_stuck(value=300.0, step=0.5)
    assert "stale" in kinds(stuck)
    assert "exactly 300" in next(v.reason for v in stuck if v.notices)
    assert kinds(watch_stuck(value=400.0, step=0.5)) == set()
    assert kinds(watch_stuck(value=300.0, step=0.0)) == set()


def watch_stuck(value: float, step: float) -> list[Verdict]:
    guard = Guard(stale_after=10, patience=1000)
    state, verdicts = guard.initial(), []
    for k in range(40):
        u = 10.0 + step * k
        state, verdict = guard.check(state, Sample(float(k), 1.0, 400.0, value, u), Action(u + step))
        verdicts.append(verdict)
    return verdicts


def test_oscillation_is_noticed_and_retreated_from() -> None:
    """The gain of the plant grows fourfold: the loop swings between its limits for ever."""
    loop = Saturation(Pi(kp=0.004, ki=0.006), low=0.2, high=22.0)
    verdicts = watch(named(), loop, 600, gain=lambda k: B if k < 200 else 4.0 * B, sigma=5.0)
    assert kinds(verdicts[:200]) == set()
    assert "oscillation" in kinds(verdicts)
    first = next(v for v in verdicts if "oscillation" in kinds([v]))
    assert first.response == "retreat"
    assert "the rate swings between" in first.reason
    assert first.command == pytest.approx(400.0 * (1.0 - A) / B, rel=0.15)


def test_a_swing_that_dies_down_is_no_oscillation() -> None:
    guard, state, verdicts = Guard(), GuardState(), []
    for k in range(120):
        error = 380.0 * 0.93**k * (1 if k % 4 < 2 else -1)
        state, verdict = guard.check(state, Sample(float(k), 1.0, 400.0, 400.0 - error, 5.0), Action(5.0))
        verdicts.append(verdict)
    assert kinds(verdicts) == set()


def test_responses_can_be_chosen() -> None:
    quiet = watch(Guard(on_unreachable="ignore"), PUBLISHED, 100, goal=lambda _k: 5000.0)
    assert kinds(quiet) == set()
    stern = watch(Guard(on_unreachable="retreat"), PUBLISHED, 200, goal=lambda k: 400.0 if k < 100 else 5000.0)
    assert stern[-1].response == "retreat"
    assert stern[-1].command == pytest.approx(400.0 * (1.0 - A) / B, rel=0.02)


def test_without_a_safe_command_a_retreat_is_a_freeze() -> None:
    verdicts = watch(Guard(on_unreachable="retreat"), PUBLISHED, 100, goal=lambda _k: 5000.0)
    assert verdicts[-1].response == "freeze"
    assert verdicts[-1].command is None


def test_watches_each_component_of_a_vector() -> None:
    guard = Guard(patience=5)
    state = guard.initial()
    for k in range(20):
        seen = Sample(float(k), 1.0, (100.0, 100.0), (100.0, 20.0), (5.0, 5.0 + k))
        state, verdict = guard.check(state, seen, Action((5.0, 6.0 + k)))
    assert [notice.kind for notice in verdict.notices] == ["lost"]


def test_state_survives_json_and_the_verdict_is_the_same() -> None:
    guard, rng = Guard(), random.Random(5)
    state = guard.initial()
    for k in range(60):
        y = None if rng.random() < 0.1 else 400.0 + rng.gauss(0.0, 80.0)
        sample, action = Sample(float(k), 1.0, 400.0, y, 5.0 + rng.random()), Action(5.0, saturated=k % 2)
        restored = from_plain(GuardState, json.loads(json.dumps(to_plain(state), allow_nan=False)))
        assert restored == state
        assert guard.check(restored, sample, action) == guard.check(state, sample, action)
        state, _ = guard.check(state, sample, action)


@pytest.mark.parametrize(("field", "value"), [("patience", 0), ("tolerance", -0.1), ("on_lost", "panic")])
def test_refuses_bad_parameters(field: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=rf"Guard\.{field}"):
        Guard(**{field: value})  # type: ignore[arg-type]  # a user's mistake
