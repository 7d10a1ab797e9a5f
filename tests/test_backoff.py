"""Waiting times: doubling, bounded, jittered, reproducible."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from flyball.backoff import ReconnectDelay, delays_s


@given(st.integers(0, 60), st.floats(1e-4, 1.0), st.floats(1.0, 60.0), st.integers())
def test_each_wait_is_between_half_and_all_of_its_nominal_value(
    attempts: int, first_s: float, longest_s: float, seed: int
) -> None:
    waits = list(delays_s(attempts, first_s=first_s, longest_s=longest_s, rng=random.Random(seed)))
    assert len(waits) == attempts
    for number, wait in enumerate(waits):
        nominal = min(first_s * 2**number, longest_s)
        assert nominal / 2 * 0.999 <= wait <= nominal * 1.001


def test_a_seed_repeats_and_another_does_not() -> None:
    one, two, other = (list(delays_s(9, rng=random.Random(seed))) for seed in (1, 1, 2))
    assert one == two != other


def test_two_clients_do_not_wait_alike() -> None:
    assert list(delays_s(5)) != list(delays_s(5))


def test_connections_that_last_are_opened_again_at_once_and_others_later_and_later() -> None:
    delay = ReconnectDelay(longest_s=1.0, stable_s=5.0, rng=random.Random(3))
    assert delay.remaining_s(0.0) == 0.0
    now_s, pauses = 100.0, []
    for _ in range(8):
        delay.opened(now_s)
        delay.lost(now_s + 4.9)
        delay.lost(now_s + 4.95)  # reported twice
        pauses.append(delay.remaining_s(now_s + 4.9))
        now_s += 10.0
    nominal = [min(0.05 * 2**number, 1.0) for number in range(8)]
    assert all(most / 2 <= pause <= most + 1e-9 for pause, most in zip(pauses, nominal, strict=True))
    delay.opened(now_s)
    delay.lost(now_s + 5.0)
    assert delay.remaining_s(now_s + 5.0) == 0.0
    delay.opened(now_s)
    delay.lost(now_s)
    assert 0.025 <= delay.remaining_s(now_s) <= 0.05 + 1e-9
