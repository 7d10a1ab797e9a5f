"""Summary of the demo's consumer."""

from __future__ import annotations

from dataclasses import replace

from flyball.consumer.policy import Little
from flyball.demo.consumer import summarise_phase
from flyball.loops.policy import Observation, Policy, Receipt, decide, start


def _receipts(rates: list[float], goal: float, used: float = 1.0) -> list[Receipt]:
    policy = Policy("demo", Little())
    state, receipts = start(policy, 2.0), []
    for k, rate in enumerate(rates):
        state, receipt = decide(policy, state, Observation(float(k), goal, rate, None, (2.0, 0.01, used)))
        receipts.append(replace(receipt, command=2.0))
    return receipts


def test_a_phase_leaves_out_its_beginning_and_other_goals() -> None:
    receipts = [*_receipts([50.0, 150.0, 180.0, 190.0, 210.0, 200.0], 200.0), *_receipts([480.0] * 9, 500.0)]
    phase = summarise_phase(receipts, 200.0)
    assert (phase.samples, phase.mean_per_s, phase.window) == (3, 200.0, 2.0)
    assert phase.std_per_s == 8.2


def test_starved_samples_are_left_out() -> None:
    assert summarise_phase(_receipts([10.0] * 9, 200.0, used=0.1), 200.0).mean_per_s is None
    assert summarise_phase(_receipts([10.0] * 9, 200.0, used=1.0), 200.0).mean_per_s == 10.0
