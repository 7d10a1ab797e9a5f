"""From an experiment on the plant to controllers that run: on the twin, whose true gain is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyball.consumer.config import ConsumerConfig, ConsumerFile, ProfileConfig
from flyball.consumer.policy.controller import make_controller
from flyball.consumer.policy.goals import Rate
from flyball.consumer.tune import MOST_RUNS, Playback, Tuning, design_model, propose, select_informative
from flyball.control.identification.identify import Fit, identify
from flyball.control.record import LoopRecord
from flyball.control.step import ReasonCode
from flyball.control.tuning import Candidate, designed, excitation
from flyball.errors import FlyballError
from flyball.loops.policy import Observation, Policy, decide, start
from flyball.loops.toml import check
from flyball.twin.consumer import ConsumerPlant, staircase
from flyball.twin.consumer_loop import run_consumer

PLANT = ConsumerPlant(handling_s=0.02, handlers=60, wander=0.05)
FILE: dict[str, Any] = {"url": "memory://x", "queue": "q", "handler": "json:loads", "goal": "rate=300"}


def short_experiment(seed: int) -> Fit:
    windows, rates = staircase(PLANT, list(range(1, 18, 2)), samples_each=2, seed=seed)
    return identify(windows, rates, align="same", delay=0)


@pytest.mark.parametrize("seed", range(5))
def test_a_short_experiment_finds_the_gain(seed: int) -> None:
    """Whatever the noise makes of a, the plant has no memory at samples of a second."""
    model, covariance = design_model(short_experiment(seed))
    assert model.a == (0.0,), f"seed {seed}"
    assert model.b[0] == pytest.approx(1.0 / PLANT.residence_s(), rel=0.1), f"seed {seed}"
    assert covariance[1, 1] > 0.0


def test_without_memory_the_gain_is_that_of_a_straight_line() -> None:
    windows, rates = staircase(PLANT, list(range(1, 18, 2)), samples_each=2, seed=1)
    model, _ = design_model(identify(windows, rates, align="same", delay=0, whole_range=True))
    slope, _ = np.polyfit(windows[1:], rates[1:], 1)  # the first row has no row before it
    assert model.b[0] == pytest.approx(slope, rel=1e-6)


def test_memory_that_is_there_is_kept() -> None:
    rng = np.random.default_rng(4)
    windows = rng.uniform(1.0, 20.0, 80)
    rates = np.zeros(80)
    for k in range(1, 80):
        rates[k] = 0.5 * rates[k - 1] + 30.0 * windows[k] + rng.normal(0.0, 5.0)
    fit = identify(windows, rates, align="same", delay=0)
    assert design_model(fit)[0] is fit.model


@pytest.mark.parametrize("seed", range(3))
def test_every_candidate_runs_from_its_config_and_holds_the_goal(seed: int) -> None:
    candidates = propose(short_experiment(seed), settling=4.0, overshoot=0.1)
    assert [one.name for one in candidates] == ["little", "pi_ff", "pi", "state_feedback"]
    assert [one.name for one in candidates if not one.accepted] == [], f"seed {seed}"
    assert candidates[0].settling == 1
    for one in candidates:
        config = check({**FILE, "controller": one.config}, ConsumerConfig, one.name)
        assert config.controller == one.config
        controller = make_controller(
            Rate(300.0), {key: tuple(v) if isinstance(v, list) else v for key, v in one.config.items()}
        )
        run = run_consumer(PLANT, "rate=300", controller, samples=40, seed=seed)
        assert run.rate[12:].mean() == pytest.approx(300.0, rel=0.05), f"seed {seed}: {one.name}"


def test_starved_samples_are_not_fitted_and_the_end_of_the_signal_is_noticed() -> None:
    """Publishers send 100/s for every other sample: the rate then says nothing about the window."""
    policy = Policy("tune", make_controller(Rate(300.0), Playback((1.0, 2.0, 3.0, 4.0))), glide=False)
    state, window, records = start(policy, 1.0), 1.0, list[LoopRecord]()
    for k in range(12):
        starved = k % 2 == 1
        rate = 20.0 if starved else 60.0 * window
        disturbances = (0.0, 1.0 / 60.0, 0.1 if starved else 1.0, 0.0, 100.0)
        state, record = decide(policy, state, Observation(float(k), 300.0, rate, None, disturbances))
        records.append(record)
        window = record.command if isinstance(record.command, float) else window
    rows = select_informative(records)
    assert len(rows) == 6
    assert all(rate == 60.0 * window for window, rate in rows)
    assert [record.code for record in records].index(ReasonCode.SIGNAL_COMPLETE) == 8


@pytest.mark.parametrize("seed", [12, 26, 36, 40, 46, 48])
def test_a_machine_that_pauses_needs_more_than_one_run_of_the_signal(seed: int) -> None:
    """A pause of 150 ms each second spoils samples of 250 ms: after 18 of them a PI is rejected, for other reasons
    with each seed (a gain that may be 0, a memory that is not there)."""
    plant = ConsumerPlant(
        handling_s=0.06, handlers=20, round_trip_s=0.003, spread=0.1, wander=0.2, stalls_per_s=1.0, stall_s=0.15
    )
    signal = excitation("staircase", 1.0, 10.0, samples=18, hold=2)
    run = run_consumer(
        plant,
        "rate=100",
        Playback(signal, enough=150.0),
        samples=MOST_RUNS * len(signal) + 1,
        period_s=0.25,
        window=1.0,
        limits=(1.0, 10.0),
        guarded=False,
        seed=seed,
    )
    ends = [k for k, record in enumerate(run.records) if record.code is ReasonCode.SIGNAL_COMPLETE]
    assert len(ends) == MOST_RUNS

    def pi_after(runs: int) -> Candidate:
        rows = select_informative(run.records[2 : ends[runs - 1] + 1])
        fit = identify([window for window, _ in rows], [rate for _, rate in rows], align="same", delay=0)
        model, covariance = design_model(fit)
        return designed("pi", "pi", model, settling=4.0, overshoot=0.1, covariance=covariance)

    assert not pi_after(1).accepted
    assert any(pi_after(runs).accepted for runs in range(2, MOST_RUNS + 1))


# --- profiles in the file ----------------------------------------------------------------------------------------


def tuned(seed: int) -> Tuning:
    fit = short_experiment(seed)
    return Tuning((), (), fit, propose(fit, 4.0, 0.1), ConsumerConfig(**FILE))


def test_a_profile_takes_the_place_of_one_of_its_name() -> None:
    day = tuned(1).profile("day")
    assert (day.a, day.b) == pytest.approx((0.0, 1.0 / PLANT.residence_s()), rel=0.1)
    night = ProfileConfig(name="night", a=0.0, b=day.b / 5, kp=0.0, ki=5 * day.ki)
    file = ConsumerFile(consumer=ConsumerConfig(**FILE)).with_profile(day).with_profile(night)
    assert [one.name for one in file.profile] == ["day", "night"]
    again = file.with_profile(day.model_copy(update={"ki": 0.01}))
    assert [(one.name, one.ki) for one in again.profile] == [("night", night.ki), ("day", 0.01)]
    assert file.make().loop is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"consumer": {**FILE, "controller": "little"}}, "the profiles have their own gains"),
        ({"consumer": {**FILE, "goal": "capacity"}}, "has its own controller"),
        ({"profile": [{"name": "a", "a": 0, "b": 60, "kp": 0, "ki": 1}] * 2}, "with different names"),
        ({"profile": [{"name": "a", "a": 0, "b": -60, "kp": 0, "ki": 1}]}, "b > 0"),
    ],
)
def test_files_that_cannot_be_are_explained(change: dict[str, object], said: str) -> None:
    good = {"consumer": FILE, "profile": [{"name": "a", "a": 0.0, "b": 60.0, "kp": 0.0, "ki": 0.006}]}
    check(good, ConsumerFile, "good.toml")
    with pytest.raises(FlyballError, match=said):
        check({**good, **change}, ConsumerFile, "bad.toml")
