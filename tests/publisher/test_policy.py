"""Properties of the policy and its controllers in virtual time."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.controllers import catalogue
from flyball.control.controllers.publishing.signals import PublisherMeasurement
from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue
from flyball.publisher import policy as rules
from flyball.testing.fifo_broker import FifoBroker, Source, jain


def run(
    controller: str,
    rate: float,
    *,
    seconds: float = 6.0,
    capacity: float = 2000.0,
    trip_s: float = 0.01,
    batch: int = 1,
    **options: Any,
) -> Source:
    source = Source(rules.Policy(catalogue.make(controller, **options)), lambda _: rate, batch=batch)
    FifoBroker([source], capacity=lambda _: capacity, round_trip_s=trip_s).run(seconds)
    return source


def measurement(record: LoopRecord) -> PublisherMeasurement:
    assert isinstance(record.measurement, PublisherMeasurement)
    return record.measurement


def mean_latency_s(source: Source, after_s: float = 2.0) -> float:
    return statistics.fmean(latency_s for time_s, latency_s in source.latencies if time_s >= after_s)


@given(window=st.integers(1, 500), urgent=st.integers(0, 50), more=st.integers(0, 50))
def test_urgent_messages_do_not_wait_for_room_that_others_take(window: int, urgent: int, more: int) -> None:
    """Beyond a full window an eighth of it is theirs, and nobody else's."""
    policy = rules.Policy(catalogue.make("static", batch=1, window=window))
    state = rules.start(policy, 0.0)
    state, decisions = rules.decide(policy, state, rules.Accepted(0.0, window + 10))
    assert state.in_flight == sum(batch.count for batch in decisions.send) == window
    share = max(1, window // 8)
    sent = 0
    for count in (urgent, more):
        events = (rules.Accepted(1.0, count), rules.Urgent(1.0, state.urgent + count))
        state, decisions = rules.decide(policy, state, *events)
        sent += sum(batch.count for batch in decisions.send)
    assert sent == min(urgent + more, share)
    assert state.in_flight == window + sent
    assert state.urgent == urgent + more - sent


@pytest.mark.parametrize("controller", ["static", "auto"])
def test_an_ordered_publisher_has_one_batch_on_the_way_and_keeps_up_by_larger_ones(controller: str) -> None:
    policy = rules.Policy(catalogue.make(controller), ordered=True)
    source = Source(policy, lambda _: 1000.0)
    FifoBroker([source], capacity=lambda _: 4000.0, round_trip_s=0.02).run(6.0)
    assert all(measurement(record).in_flight <= 1000.0 for record in source.records)
    ends = [time_s for time_s, _ in source.confirmed]
    begins = [batch.sent_s for batch in source.sent]
    assert all(begin >= end for begin, end in zip(begins[1:], ends, strict=False))
    assert sum(count for time_s, count in source.confirmed if time_s > 3.0) / 3.0 > 900.0


@pytest.mark.parametrize("batch", [1, 10, 50, 500])
def test_auto_sends_a_lone_message_at_once_from_any_initial_batch(batch: int) -> None:
    source = run("auto", 17.5, batch=batch, trip_s=0.14)
    assert mean_latency_s(source, 0.0) == pytest.approx(0.14 + 1 / 2000, rel=1e-6)
    assert {sent.count for sent in source.sent} == {1}


@pytest.mark.parametrize("batch", [1, 500])
def test_auto_carries_a_high_load_over_a_long_path_after_two_round_trips(batch: int) -> None:
    source = run("auto", 2000.0, capacity=15_000.0, trip_s=0.14, batch=batch, seconds=3.0)
    late = sorted(took_s for came_s, took_s in source.latencies if came_s >= 0.3)
    assert statistics.fmean(late) <= 1.1 * 0.14
    assert late[int(0.99 * len(late))] <= 1.3 * 0.14


def test_auto_forms_batches_only_while_the_broker_is_the_bottleneck() -> None:
    relaxed, pressed = run("auto", 500.0), run("auto", 4000.0)
    assert statistics.mean(batch.count for batch in relaxed.sent) < 1.5
    assert statistics.mean(batch.count for batch in pressed.sent) > 4.0
    rate = sum(count for time_s, count in pressed.confirmed if time_s > 2.0) / 4.0
    assert rate > 0.95 * 2000.0


@pytest.mark.parametrize(("capacity", "trip_s"), [(500.0, 0.01), (2000.0, 0.001), (2000.0, 0.05), (8000.0, 0.013)])
def test_auto_holds_what_is_on_the_way_near_the_knee(capacity: float, trip_s: float) -> None:
    source = run("auto", 2 * capacity, capacity=capacity, trip_s=trip_s, seconds=8.0)
    late = [record for record in source.records if record.time > 4.0 and measurement(record).transfer_s > 0.0]
    # The round trip without a queue is known since the moment of draining at 5 s.
    knee = capacity * (trip_s + 1 / capacity)
    knees = [record.parts["knee"] for record in late if record.time > 5.5]
    assert statistics.mean(knees) == pytest.approx(knee, rel=0.1)
    # The queue at the broker is some milliseconds, whatever its speed.
    queued_s = statistics.mean(measurement(r).transfer_s for r in late) - trip_s
    assert queued_s < 0.03
    assert sum(count for time_s, count in source.confirmed if time_s > 4.0) / 4.0 > 0.9 * capacity


def test_auto_halves_on_trouble_and_finds_the_knee_again() -> None:
    source = Source(rules.Policy(catalogue.make("auto")), lambda _: 4000.0)
    broker = FifoBroker([source], capacity=lambda _: 2000.0, round_trip_s=0.01)
    broker.at(3.0, lambda _: setattr(broker, "blocked_until_s", 6.0))
    broker.run(12.0)
    silent = [r for r in source.records if 3.0 < r.time < 6.0 and measurement(r).unavailable]
    assert len(silent) >= 2
    windows = [command[3] for r in silent if isinstance(command := r.command, tuple)]
    assert windows == sorted(windows, reverse=True)
    assert windows[-1] < windows[0]
    after = sum(count for time_s, count in source.confirmed if 8.0 < time_s <= 12.0) / 4.0
    assert after > 0.95 * 2000.0


def test_auto_learns_that_the_path_has_become_longer() -> None:
    source = Source(rules.Policy(catalogue.make("auto")), lambda _: 4000.0)
    broker = FifoBroker([source], capacity=lambda _: 2000.0, round_trip_s=0.01)
    broker.at(7.0, lambda _: setattr(broker, "round_trip_s", 0.1))
    broker.run(36.0)
    # The shorter round trip counts for 15 s more; until then the longer one looks like a queue.
    assert source.records[-1].parts["round_trip_s"] == pytest.approx(0.1 + 1 / 2000, rel=0.01)
    after = sum(count for time_s, count in source.confirmed if time_s >= 30.0) / 6.0
    assert after > 0.85 * 2000.0  # draining takes its part


@pytest.mark.parametrize("phase_s", [0.0, 1.0, 2.0, 2.25, 2.5, 3.0, 4.0])
def test_within_five_round_trips_after_the_backlog_of_a_burst_the_latency_is_what_it_was(phase_s: float) -> None:
    start_s = (
        100.0 + phase_s
    )  # `auto` measures the round trip anew at multiples of 5 s, here in and after the burst
    burst_s = start_s + 2.0
    policy = rules.Policy(catalogue.make("auto"))
    source = Source(policy, lambda t: 2000.0 if burst_s <= t < burst_s + 0.5 else 40.0, start_s=start_s)
    FifoBroker([source], capacity=lambda _: 5000.0, round_trip_s=0.14).run(start_s + 6.0)
    settled_s = statistics.median(took_s for came_s, took_s in source.latencies if came_s < burst_s)
    gone_s = max(came_s + took_s for came_s, took_s in source.latencies if came_s < burst_s + 0.5)
    assert gone_s > burst_s + 0.5 + settled_s  # there was a backlog
    after = [took_s for came_s, took_s in source.latencies if came_s >= gone_s + 5 * 0.14]
    assert len(after) > 40
    assert max(after) <= 1.1 * settled_s


@pytest.mark.parametrize(
    ("trip_s", "jitter_s", "used"),
    [(0.001, 0.0, 0.99), (0.013, 0.0, 0.98), (0.013, 0.003, 0.98), (0.14, 0.0, 0.9)],
)
def test_eight_publishers_that_join_one_after_the_other_end_with_equal_shares(
    trip_s: float, jitter_s: float, used: float
) -> None:
    policy = rules.Policy(catalogue.make("auto"))
    sources = [Source(policy, lambda _: 1000.0, start_s=100.3 + number) for number in range(8)]
    broker = FifoBroker(
        sources, capacity=lambda _: 2000.0, round_trip_s=trip_s, tick_s=0.01, jitter_s=jitter_s, seed=1
    )
    broker.run(127.3)
    shares = [sum(count for time_s, count in s.confirmed if time_s >= 122.3) for s in sources]
    assert jain([float(share) for share in shares]) >= 0.97
    # Draining for two round trips in five seconds is what the truth about the round trip costs.
    assert sum(shares) > used * 2000.0 * 5.0


def test_windows_far_too_large_come_down_together_and_are_equal_in_time() -> None:
    """Joining a slow broker within 4 s, most take the queue of the others for distance until all have drained."""
    starts_s = [101.52, 102.01, 102.27, 102.58, 103.58, 103.7, 104.09, 105.4]
    policy = rules.Policy(catalogue.make("auto"))
    sources = [Source(policy, lambda _: 250.0, start_s=start_s) for start_s in starts_s]
    FifoBroker(sources, capacity=lambda _: 500.0, round_trip_s=0.14, tick_s=0.01).run(125.4)
    shares = [sum(count for time_s, count in s.confirmed if time_s >= 120.4) for s in sources]
    assert jain([float(share) for share in shares]) >= 0.97


def test_a_static_batch_diverges_where_n_over_t_poll_is_below_the_load() -> None:
    carried = run("static", 18.0, poll_s=0.05, batch=1, seconds=20.0)
    diverging = run("static", 30.0, poll_s=0.05, batch=1, seconds=20.0)
    assert carried.state.pending <= 3
    assert diverging.state.pending > 100  # (30 − 20) a second


def test_batch_aimd_halves_n_when_messages_are_few_and_keeps_its_polling_interval_within_bounds() -> None:
    source = run("batch-aimd", 35.0, batch=500, trip_s=0.14, seconds=20.0)
    commands = [r.command for r in source.records if r.command is not None]
    assert all(isinstance(command, tuple) and 0.05 <= command[2] <= 0.2 for command in commands)
    assert source.state.command.most < 50
    assert source.state.pending < 50


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    kinds = st.sampled_from(["accept", "confirm", "fail", "block", "unblock", "timer"])
    return draw(st.lists(st.tuples(kinds, st.integers(1, 50), st.floats(0.0, 2.0)), max_size=60))


@settings(max_examples=150)
@given(
    controller=st.sampled_from(["static", "batch-aimd", "auto"]),
    batch=st.integers(1, 300),
    events=happenings(),
)
def test_counts_add_up_and_the_window_is_kept_whatever_happens(
    controller: str, batch: int, events: list[tuple[str, int, float]]
) -> None:
    policy = rules.Policy(catalogue.make(controller))
    state = rules.start(policy, 0.0, batch=batch)
    under_way: list[rules.Batch] = []
    accepted = confirmed = 0
    now_s = 0.0
    for kind, number, pause_s in events:
        now_s += pause_s
        event: rules.Event = rules.Timer(now_s)
        if kind == "accept":
            accepted += number
            event = rules.Accepted(now_s, number)
        elif kind == "block":
            event = rules.Blocked(now_s)
        elif kind == "unblock":
            event = rules.Unblocked(now_s)
        elif under_way and kind in ("confirm", "fail"):
            done = under_way.pop(number % len(under_way))
            back = min(number, done.count) if kind == "fail" else 0
            confirmed += done.count - back
            event = rules.Failed(now_s, done, back, now_s + 0.1) if back else rules.Confirmed(now_s, done)
        before = state.in_flight
        state, decisions = rules.decide(policy, state, event)
        under_way += decisions.send
        assert state.in_flight == sum(each.count for each in under_way)
        assert accepted == confirmed + state.in_flight + state.pending
        assert 0 <= state.handing <= state.pending
        if decisions.send:
            assert not state.blocked
            assert state.in_flight <= max(state.command.window, 1, before + 1)
        assert decisions.wake_s is None or decisions.wake_s > now_s
        # Whatever waits is looked at again: by a timer, or when something comes back.
        assert not state.pending or state.blocked or under_way or decisions.wake_s is not None


def test_refuses_what_makes_no_sense() -> None:
    controller = catalogue.make("auto")
    with pytest.raises(InvalidValue, match="batch_wait_s"):
        rules.Policy(controller, batch_wait_s=0.0)
    with pytest.raises(InvalidValue, match="batch must be an integer >= 1, got 0"):
        rules.start(rules.Policy(controller), 0.0, batch=0)
    with pytest.raises(InvalidValue, match="least, most, poll_s, window"):
        controller.initial(3.0)
