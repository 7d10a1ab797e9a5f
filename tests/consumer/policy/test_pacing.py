"""A pace on a machine whose timers are late."""

from __future__ import annotations

import random
from bisect import bisect_left

import pytest

from flyball.consumer.policy.pacing import TokenBucket, carry_out, count_tokens, take_token
from tests.new_cases import case_seed


@pytest.mark.parametrize("rate_per_s", [2.0, 10.0, 50.0, 400.0])
@pytest.mark.parametrize("pacing", ["always", "bounded", "below one"])
@pytest.mark.parametrize("number", range(5))
def test_timers_that_are_up_to_80_ms_late_cost_no_rate(rate_per_s: float, pacing: str, number: int) -> None:
    seed = case_seed() + number
    rng = random.Random(seed)
    actuation = carry_out(0.001 * rate_per_s, pacing, None, rate_per_s)  # type: ignore[arg-type]
    assert actuation.pace_per_s == rate_per_s
    state, now_s, times_s = TokenBucket(), 0.0, []
    while now_s < 20.0:
        for _ in range(count_tokens(state, now_s, rate_per_s, actuation.burst_s)):
            state, _ = take_token(state, now_s, rate_per_s, actuation.burst_s)
            times_s.append(now_s)
        now_s += 0.005 + rng.uniform(0.0, 0.075)
    assert len(times_s) >= 0.97 * 20.0 * rate_per_s, seed
    # An upper bound all the same: no second has more than the rate and what a late timer had kept back.
    for at, first_s in enumerate(times_s):
        in_second = bisect_left(times_s, first_s + 1.0) - at
        assert in_second <= 1.1 * rate_per_s + 1.0, seed
