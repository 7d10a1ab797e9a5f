"""Summary of the demo's consumer."""

from __future__ import annotations

from dataclasses import replace

from flyball.consumer.policy.little import Little
from flyball.control.record import LoopRecord
from flyball.demo.consumer import summarise_phase
from flyball.loops.policy import Observation, Policy, decide, start


def _records(rates: list[float], goal: float, used: float = 1.0, window: float = 2.0) -> list[LoopRecord]:
    policy = Policy("demo", Little())
    state, records = start(policy, 2.0), []
    for k, rate in enumerate(rates):
        state, record = decide(policy, state, Observation(float(k), goal, rate, None, (2.0, 0.01, used)))
        records.append(replace(record, command=window))
    return records


def test_a_phase_counts_what_comes_after_settling_and_no_other_goal() -> None:
    transient = [50.0, 150.0, 180.0, 190.0, 210.0, 200.0, 200.0, 190.0]  # the last six: 195 on average
    settled = [205.0, 190.0, 210.0, 205.0, 195.0]
    records = [*_records([*transient, *settled], 200.0), *_records([480.0] * 9, 500.0)]
    phase = summarise_phase(records, 200.0)
    assert (phase.settled_after, phase.samples, phase.mean_per_s, phase.window) == (8, 5, 201.0, 2.0)
    assert phase.std_per_s == 7.3


def test_a_loop_that_stays_short_of_its_goal_has_no_figure() -> None:
    phase = summarise_phase(_records([166.0] * 40, 200.0), 200.0)
    assert (phase.settled_after, phase.mean_per_s) == (None, None)


def test_after_a_disturbance_the_loop_has_to_settle_again() -> None:
    disturbed = [*_records([200.0] * 9, 200.0), *_records([120.0, 130.0, 300.0, 280.0], 200.0, window=4.0)]
    assert summarise_phase(disturbed, 200.0).mean_per_s is None  # three settled samples are too few
    settled_again = [
        *disturbed,
        *_records([201.0] * 6, 200.0, window=2.5),
        *_records([204.0] * 12, 200.0, window=2.5),
    ]
    phase = summarise_phase(settled_again, 200.0)
    assert (phase.settled_after, phase.samples, phase.mean_per_s, phase.window) == (19, 12, 204.0, 2.5)


def test_starved_samples_are_left_out() -> None:
    assert summarise_phase(_records([199.0] * 11, 200.0, used=0.1), 200.0).mean_per_s is None
    assert summarise_phase(_records([199.0] * 11, 200.0, used=1.0), 200.0).mean_per_s == 199.0
