"""No fault of a sensor and no change of the load makes self-tuning adopt gains that are unstable on the plant."""

from __future__ import annotations

import pytest

from tests.control.controllers.self_tuning_runs import adopted_gains, random_case, true_radius
from tests.new_cases import case_seed

RUNS = 100


@pytest.mark.hypothesis  # its cases are generated, too
@pytest.mark.parametrize("block", range(10))
def test_adopted_gains_are_stable_on_the_true_plant(block: int) -> None:
    first = 10_000 * case_seed() + RUNS * block
    tuned = 0
    for seed in range(first, first + RUNS):
        case = random_case(seed)
        adopted = adopted_gains(case)
        tuned += bool(adopted)
        for state in adopted:
            assert true_radius(case, state) < 1.0, f"{case} swapped after {state.samples} samples: {state.verdict}"
    assert tuned >= 0.6 * RUNS, f"only {tuned} of {RUNS} runs from seed {first} tuned at all"
