"""The round trip as part of the window: learned from answers, and never from the silence of an empty queue."""

from __future__ import annotations

import pytest

from flyball.brokers.core.round_trip import RoundTrip


def asked(took_s: float) -> RoundTrip:
    trip = RoundTrip()
    trip.add_probe(took_s)
    return trip


def answered(trip: RoundTrip, took_s: float, times: int, *, more: bool) -> None:
    for k in range(times):
        trip.add_settled(1, float(k))
        trip.outstanding(k + took_s)
        trip.add_arrivals(1, k + took_s, more=more)


def test_the_wait_for_publishers_is_no_round_trip() -> None:
    trip = asked(0.013)
    answered(trip, 0.1, 200, more=False)
    assert trip.mean_s == 0.013


def test_where_it_looks_as_if_there_were_more_a_question_still_bounds_it() -> None:
    trip = asked(0.013)
    answered(trip, 0.1, 200, more=True)
    assert trip.mean_s == pytest.approx(0.013, rel=0.2)


def test_a_longer_round_trip_is_learned() -> None:
    trip = asked(0.013)
    trip.add_probe(0.040)
    answered(trip, 0.042, 200, more=True)
    assert trip.mean_s == pytest.approx(0.042, rel=0.01)


def test_a_shorter_round_trip_is_learned_from_any_answer() -> None:
    trip = asked(0.1)
    answered(trip, 0.013, 200, more=False)
    assert trip.mean_s == pytest.approx(0.013, rel=0.01)


def test_questions_lead_out_of_a_wrong_estimate() -> None:
    """Where the round trip has become several times longer nothing is parked, so deliveries teach nothing."""
    trip = asked(0.013)
    for _ in range(10):
        trip.add_probe(0.1)
    assert trip.mean_s == pytest.approx(0.1, rel=0.01)


def test_a_batch_is_answered_one_by_one_and_counts_as_free_together() -> None:
    trip = asked(0.01)
    trip.add_settled(5, 1.0)
    trip.add_arrivals(2, 1.01, more=True)
    assert trip.outstanding(1.01) == 3
    assert trip.outstanding(1.1) == 0  # given up, and remembered
    trip.add_settled(2, 1.1)
    trip.add_arrivals(1, 1.1, more=True)  # a late one: the two that were settled since are still open
    assert trip.outstanding(1.1) == 2
    assert (
        trip.outstanding(1.1, most=1) == 1
    )  # the two that were given up and one of the others will never be answered
    trip.reset()
    assert trip.outstanding(1.1) == 0
