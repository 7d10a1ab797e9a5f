"""Admission, splitting, balancing and merging, as decisions: on plants and orders written down here."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.models import first_order
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue
from flyball.pipeline import policy
from flyball.pipeline.policy import (
    Balancer,
    FlowControl,
    LaneDelay,
    LaneProgress,
    Merge,
    Pace,
    balancing,
    failures,
)

MB = 1_000_000


def drained_queue(drains: list[float], *, event_bytes: float, backlog: int) -> tuple[list[float], int]:
    """Free space at each interval of a 64 MB queue with reference 40 MB that is drained at `drains` MB/s."""
    flow = FlowControl(limit_bytes=64 * MB, reference_bytes=40 * MB)
    used, events, made, free_at = 0.0, 0, 0.0, []
    state = policy.flow_start(flow, 0.0, flow.limit_bytes, 0, 0)
    for interval, drain in enumerate(drains):
        now = interval * flow.interval_s
        free = flow.limit_bytes - used
        assert used <= flow.limit_bytes, f"overflow at interval {interval}"
        state = policy.flow_step(flow, state, now, free, events, round(made))
        count = min(backlog, policy.admissible(state, free))
        state = policy.admitted(state, count)
        backlog -= count
        events += count
        made += count * event_bytes
        used = max(0.0, used + count * event_bytes - drain * MB * flow.interval_s)
        free_at.append(free)
    return free_at, events


def test_free_space_is_held_when_the_drain_steps_up_and_down() -> None:
    drains = [1.0] * 30 + [1.2] * 20 + [0.7] * 20 + [1.2] * 20
    free, _ = drained_queue(drains, event_bytes=60.3, backlog=10**9)
    for step in (30, 50, 70):
        settled = free[step + 8 : step + 20]
        assert all(abs(space - 40 * MB) <= 0.03 * 40 * MB for space in settled), (step, settled)
    assert all(abs(space - 40 * MB) <= 0.05 * 40 * MB for space in free[25:])


def test_a_short_backlog_does_not_wind_the_controller_up() -> None:
    flow = FlowControl(limit_bytes=64 * MB, reference_bytes=40 * MB)
    state = policy.flow_start(flow, 0.0, 64 * MB, 0, 0)
    events, made = 0, 0
    for interval in range(200):  # far fewer events than it would take, for long
        state = policy.flow_step(flow, state, interval * 2.0, 64 * MB, events, made)
        state = policy.admitted(state, 100)
        events, made = events + 100, made + 6000
    assert policy.admissible(state, 64 * MB) * 60 <= 24 * MB


def test_admission_stops_where_the_space_is_gone_and_nothing_is_dropped() -> None:
    free, events = drained_queue([0.0] * 50, event_bytes=500.0, backlog=10**9)
    assert min(free) >= 0
    assert 20 * MB <= events * 500 <= 64 * MB


@pytest.mark.parametrize("reference", [0, 64 * MB, 100 * MB])
def test_a_reference_outside_the_queue_is_refused(reference: int) -> None:
    with pytest.raises(InvalidValue, match=f"{reference} bytes, must be between"):
        FlowControl(limit_bytes=64 * MB, reference_bytes=reference)


def test_the_gains_printed_in_s5_would_not_pass() -> None:
    plant = first_order(0.985, -134.0)
    assert verify(plant, Gains(-0.00614, 0.02168)).verdict == "unstable"
    mine = policy.flow_controller()
    assert verify(first_order(1.0, -1.0), Gains(mine.kp, mine.ki)).accepted


def test_pace_grows_from_small_batches_to_the_capacity() -> None:
    pace, count = Pace(), 1000
    for _ in range(40):  # T = 0.22 s + 5 µs an event
        pace = pace.after(count, 0.22 + 5e-6 * count)
        count = pace.most_events(2.0, at_least=1000)
    assert 0.22 + 5e-6 * count == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_pace_does_not_shrink_batches_to_nothing_where_the_events_are_not_what_takes_long(noise: float) -> None:
    rng, pace, count, sizes = random.Random(5), Pace(), 1000, []
    for _ in range(60):  # an interval is 2 s, but a batch takes 2.5 s before the first event
        pace = pace.after(count, (2.5 + 1e-5 * count) * rng.lognormvariate(0.0, noise))
        count = pace.most_events(2.0, at_least=1000)
        sizes.append(count)
    assert sum(sizes[-10:]) / 10 > 10_000


def test_pace_makes_batches_smaller_as_soon_as_cpu_load_makes_all_of_one_size_slow() -> None:
    pace, sizes, took_s = Pace(), [40_000], list[float]()
    for number in range(40):
        took_s.append((0.1 + 5e-5 * sizes[-1]) * (1.0 if number < 10 else 3.0))
        pace = pace.after(sizes[-1], took_s[-1])
        sizes.append(pace.most_events(2.0, at_least=1000) if number >= 10 else 40_000)
    assert sizes[11] == 26_666  # the first decision after the batch under CPU load
    # What was fast and large before the CPU load misleads once more; from the fourth batch on they fit.
    assert max(took_s[13:]) < 3.0
    assert took_s[-1] == pytest.approx(2.0, rel=0.01)


def test_a_batch_that_is_overdue_tells_that_its_lane_has_become_slower() -> None:
    lane = LaneDelay()
    for second in range(5):
        lane = lane.with_batch(float(second), 10_000, 1.0).with_backlog(second + 0.01, 10_000)
    assert lane.with_backlog(5.4, 14_000).now_s == pytest.approx(1.4)  # 1.4 s: nothing unusual yet
    late = lane.with_backlog(7.0, 30_000)  # 10,000 are not done after 3 s, so no more than 3,333 a second
    assert late.now_s == pytest.approx(9.0)
    assert late.with_batch(7.0, 10_000, 3.0).with_backlog(7.01, 20_000).now_s == pytest.approx(
        3.0
    )  # half believed


weights_of = st.lists(st.floats(0.02, 1.0), min_size=1, max_size=5).map(
    lambda raw: [share / sum(raw) for share in raw]
)


@given(weights_of, st.lists(st.integers(0, 50), max_size=60))
def test_shares_are_exact_in_the_long_run_however_small_the_ticks(weights: list[float], ticks: list[int]) -> None:
    given_out, carry = [0] * len(weights), (0.0,) * len(weights)
    for events in ticks:
        counts, carry = policy.split(events, weights, carry)
        assert sum(counts) == events
        assert min(counts, default=0) >= 0
        given_out = [total + count for total, count in zip(given_out, counts, strict=True)]
    for total, weight in zip(given_out, weights, strict=True):
        assert abs(total - weight * sum(ticks)) < 2.0


def balanced(lanes: int, slowness: list[float], intervals: int, *, load: float = 0.4) -> list[tuple[float, ...]]:
    """Lanes whose delay is their share times their slowness, seen through an average and one interval late."""
    balancer = Balancer(lanes)
    state = balancer.initial()
    delays, under_way, history = [1.0] * lanes, deque([state.weights]), []
    for number in range(intervals):
        state = balancer.step(state, float(number), 1.0, tuple(delays), load)
        under_way.append(state.weights)
        share = under_way.popleft()
        delays = [math.sqrt(delay * share[lane] * slowness[lane] * lanes) for lane, delay in enumerate(delays)]
        history.append(state.weights)
    return history


@pytest.mark.parametrize("slowness", [[3.0, 1.0], [1.0, 1.0, 2.0], [1.0, 4.0, 1.0, 2.0, 1.0]])
def test_delays_become_equal_whatever_the_lanes(slowness: list[float]) -> None:
    fair = [1 / slow for slow in slowness]
    history = balanced(len(slowness), slowness, 60)
    for weight, speed in zip(history[-1], fair, strict=True):
        assert weight == pytest.approx(speed / sum(fair), rel=0.02)
    for weights in history:
        assert sum(weights) == pytest.approx(1.0)
        assert min(weights) > 0.0


def test_a_lane_that_tells_nothing_moves_nothing() -> None:
    balancer = Balancer(3)
    state = balancer.initial((0.5, 0.3, 0.2))
    assert balancer.step(state, 0.0, 1.0, (1.0, None, 2.0), 0.5).weights == (0.5, 0.3, 0.2)


def test_gains_fall_with_load_and_a_region_is_left_late() -> None:
    first = {load: balanced(2, [2.0, 1.0], 2, load=load)[-1][0] for load in (0.2, 0.6, 0.9)}
    assert first[0.2] < first[0.6] < first[0.9] < 0.5
    first = {load: balanced(3, [2.0, 1.0, 1.0], 2, load=load)[-1][0] for load in (0.2, 0.6, 0.9)}
    assert first[0.2] < first[0.6] < first[0.9] < 1 / 3


def merged(logs: dict[int, list[tuple[int, float]]], seed: int) -> tuple[list[tuple[int, int]], Merge]:
    """Take entries that arrive in a random interleaving; (lane, mark) in the order they were taken."""
    rng = random.Random(seed)
    merge = Merge(dict.fromkeys(logs, LaneProgress()))
    arrived = dict.fromkeys(logs, 0)
    done = dict.fromkeys(logs, 0)
    order = []
    while any(done[lane] < len(log) for lane, log in logs.items()):
        lane = rng.choice([lane for lane, log in logs.items() if arrived[lane] < len(log)] or [-1])
        if lane >= 0:
            arrived[lane] += 1
        while True:
            waiting = [number for number in logs if done[number] < arrived[number]]
            merge, chosen = policy.next_lane(merge, waiting, 0.0, 1.0)
            if chosen is None:
                break
            mark, latest = logs[chosen][done[chosen]]
            done[chosen] += 1
            order.append((chosen, mark))
            merge = policy.add_entry(merge, chosen, mark, latest, list(logs), last=False)
    return order, merge


def test_the_order_depends_on_the_entries_and_not_on_when_they_came() -> None:
    logs = {
        0: [(0, 1.0), (1, 2.0), (5, 9.0), (9, 9.5)],
        1: [(2, 4.0), (3, 4.0), (4, 5.0), (9, 12.0)],
        2: [(9, 11.0)],
    }
    orders = {tuple(merged(logs, seed)[0]) for seed in range(30)}
    assert len(orders) == 1
    merge = merged(logs, 1)[1]
    assert (merge.settled, merge.latest_s, merge.ahead) == (9, 12.0, ())


def test_event_time_is_settled_only_as_far_as_every_lane_is() -> None:
    merge = Merge({0: LaneProgress(), 1: LaneProgress()})
    merge = policy.add_entry(merge, 0, 7, 100.0, [0, 1], last=False)
    merge = policy.add_entry(merge, 1, 3, 50.0, [0, 1], last=False)
    assert (merge.settled, merge.latest_s) == (3, 50.0)
    merge = policy.add_entry(merge, 1, 7, 60.0, [0, 1], last=False)
    assert (merge.settled, merge.latest_s) == (7, 100.0)


def test_a_dead_lane_is_given_up_after_the_set_time_and_counts_again_when_it_has_caught_up() -> None:
    merge = Merge({0: LaneProgress(), 1: LaneProgress()})
    merge = policy.add_entry(merge, 0, 4, 10.0, [0, 1], last=False)
    merge, lane = policy.next_lane(merge, [], 100.0, timeout_s=5.0)
    assert (lane, merge.settled) == (None, -1)
    merge, lane = policy.next_lane(merge, [], 104.9, timeout_s=5.0)
    assert merge.settled == -1
    merge, lane = policy.next_lane(merge, [], 105.0, timeout_s=5.0)
    assert (merge.settled, merge.latest_s, merge.lanes[1].given_up) == (4, 10.0, True)
    merge, lane = policy.next_lane(merge, [1], 106.0, timeout_s=5.0)
    assert lane == 1
    merge = policy.add_entry(merge, 1, 2, 5.0, [0, 1], last=False)
    assert merge.lanes[1].given_up
    merge = policy.add_entry(merge, 1, 4, 5.0, [0, 1], last=False)
    assert not merge.lanes[1].given_up


def test_lanes_that_all_rest_are_not_dead() -> None:
    merge = Merge({0: LaneProgress(tick=4), 1: LaneProgress(tick=4)}, settled=4)
    for now in (0.0, 100.0, 1000.0):
        merge, lane = policy.next_lane(merge, [], now, timeout_s=5.0)
        assert lane is None
        assert not any(progress.given_up for progress in merge.lanes.values())


def test_a_lane_joins_when_it_is_named_and_leaves_with_its_last_entry() -> None:
    merge = policy.add_entry(Merge({0: LaneProgress()}), 0, 0, 1.0, [0], last=False)
    merge = policy.add_entry(merge, 0, 2, 3.0, [0, 1], last=False)
    assert merge.settled == 0  # the newcomer's part of ticks 1 and 2 is still to come
    merge = policy.add_entry(merge, 1, 2, 2.0, [0, 1], last=False)
    assert merge.settled == 2
    merge = policy.add_entry(merge, 1, 3, 4.0, [0, 1], last=True)
    merge = policy.add_entry(merge, 0, 3, 4.0, [0], last=False)
    assert (merge.settled, list(merge.lanes)) == (3, [0])
    only = policy.add_entry(replace(merge, settled=3), 0, 4, 9.0, [0], last=True)
    assert (only.settled, only.latest_s) == (4, 9.0)


def test_each_region_of_the_schedule_is_a_design_that_passes() -> None:
    for _, sensitivity in balancing._REGIONS:
        made = design(policy.lane_plant(sensitivity), "pi", settling=12, overshoot=0.1)
        assert made.certificate.accepted


# --- failures


def test_tries_in_a_row_are_bounded_and_counted_anew_after_a_while_or_a_kill() -> None:
    pauses_s = (0.2, 0.4, 0.8)
    retries, times = failures.RetryState(0.0), []
    for _ in pauses_s:
        retries, again_s = retries.fail(1.0, pauses_s)
        times.append(again_s)
    assert times == [1.2, 1.4, 1.8]
    assert retries.fail(1.0, pauses_s)[1] is None
    assert retries.fail(1.0, pauses_s, external_kill=True)[1] == 1.2
    retries = retries.restart(2.0)
    assert retries.fail(3.0, pauses_s)[1] is None
    assert retries.fail(62.0, pauses_s)[1] == 62.2


SPARK_ERROR = "org.apache.spark.SparkException"


@pytest.mark.parametrize(
    ("causes", "transient"),
    [
        ([(SPARK_ERROR, None), (SPARK_ERROR, None), ("java.net.SocketTimeoutException", None)], True),
        ([("java.io.EOFException", None)], True),
        ([(SPARK_ERROR, None)], True),  # an executor was lost: the stage is aborted, and no task threw anything
        ([(SPARK_ERROR, "INTERNAL_ERROR")], False),
        ([(SPARK_ERROR, None), ("org.apache.spark.api.python.PythonException", "PYTHON_EXCEPTION")], False),
        ([(SPARK_ERROR, None), ("java.lang.ArithmeticException", None)], False),
        ([("java.io.FileNotFoundException", None)], False),
        ([], False),
    ],
)
def test_the_classes_of_the_causes_tell_what_is_transient(
    causes: list[tuple[str, str | None]], transient: bool
) -> None:
    assert failures.kind_of_causes([failures.JavaCause(*cause) for cause in causes]).is_transient == transient
