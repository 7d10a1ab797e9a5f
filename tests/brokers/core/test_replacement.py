"""How long slots stay empty: a mean of all messages at first, which neither a stall nor a drought moves far."""

from __future__ import annotations

import pytest

from flyball.brokers.core.replacement import Replacement


def replaced(replacement: Replacement, took_s: float, times: int, count: int = 1) -> None:
    for k in range(times):
        replacement.add_empty(count, float(k))
        replacement.fill(count, requested=count, now_s=k + took_s)


def test_it_is_the_mean_of_what_was_seen() -> None:
    replacement = Replacement()
    replaced(replacement, 0.001, 10)
    replaced(replacement, 0.003, 5, count=2)
    assert replacement.mean_s == pytest.approx(0.002)
    replaced(replacement, 0.005, 500)
    assert replacement.mean_s == pytest.approx(0.005, rel=0.01)  # the old ones are forgotten


def test_one_stall_is_no_new_mean() -> None:
    replacement = Replacement()
    replaced(replacement, 0.001, 100)
    replaced(replacement, 0.9, 1)
    assert replacement.mean_s < 0.0011


def test_places_that_wait_for_a_publisher_say_nothing() -> None:
    replacement = Replacement()
    replaced(replacement, 0.001, 100)
    for k in range(100):
        replacement.add_empty(3, float(k))
        replacement.fill(1, requested=3, now_s=k + 0.001)  # one was there
        replacement.fill(0, requested=2, now_s=k + 0.002)
        replacement.fill(2, requested=2, now_s=k + 0.5)  # these were published later
    assert replacement.mean_s == pytest.approx(0.001)


def test_places_that_a_narrower_window_leaves_empty_say_nothing() -> None:
    replacement = Replacement()
    replaced(replacement, 0.001, 100)
    for k in range(100):
        replacement.add_empty(2, float(k))
        replacement.limit(1)
        replacement.fill(1, requested=1, now_s=k + 0.001)
        replacement.fill(1, requested=1, now_s=k + 0.05)  # the window was wider again
    assert replacement.mean_s == pytest.approx(0.001)


def test_before_anything_was_replaced_it_is_nothing() -> None:
    replacement = Replacement()
    replacement.add_empty(0, 1.0)
    replacement.fill(5, requested=5, now_s=1.5)
    assert replacement.mean_s == 0.0
