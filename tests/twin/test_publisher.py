"""The paper's publisher in the twin: what the paper shows, what can be computed by hand, reproducible runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyball.control.controllers.publishing.auto import Auto
from flyball.control.controllers.publishing.static import Static
from flyball.control.step import Controller
from flyball.errors import InvalidValue
from flyball.twin.publisher import (
    CONGESTED,
    NearSide,
    PublisherRun,
    jain,
    run_publisher,
    run_sharing,
    tuned,
    untuned,
)
from flyball.twin.pubsub import FarSide
from flyball.twin.workload import Bursts, Poisson, Trace

ROUND_TRIP_S = FarSide().round_trip_s
LOADS = (1.75, 17.5, 35.0, 55.0)
SEED = 1


def _static(batch: int, load: float) -> PublisherRun:
    return run_publisher(untuned(batch), Poisson(load), seed=SEED, duration_s=60.0, skip_s=10.0)


def test_a_lone_message_takes_what_its_parts_take() -> None:
    near, far = NearSide(), FarSide()
    run = run_publisher(tuned("auto"), Trace((0.0,)), seed=SEED, duration_s=5.0)
    parts_s = near.receive_s + near.write_s + near.read_s + near.read_each_s + far.intake_s + far.round_trip_s
    assert run.response_s.tolist() == pytest.approx([parts_s])


@pytest.mark.parametrize("name", ["auto", "batch-aimd"])
@pytest.mark.parametrize("load", LOADS)
def test_with_tuning_the_latency_is_the_same_from_every_initial_n(name: str, load: float) -> None:
    means_s = [
        run_publisher(tuned(name), Poisson(load), seed=SEED, duration_s=30.0, skip_s=10.0, batch=batch).mean_s
        for batch in (1, 10, 50, 500)
    ]
    assert max(means_s) <= 1.02 * min(means_s), f"{means_s}, seed {SEED}"


def test_the_best_static_n_is_1_at_low_load_and_grows_with_it() -> None:
    best = [min((1, 2, 3, 5, 10), key=lambda batch: _static(batch, load).mean_s) for load in LOADS]
    assert best[0] == 1, f"{best}, seed {SEED}"
    assert best == sorted(best), f"{best}, seed {SEED}"
    assert best[-1] >= 4, f"{best}, seed {SEED}"


@pytest.mark.parametrize(("batch", "load"), [(1, 17.5), (1, 35.0), (2, 35.0), (2, 55.0), (3, 55.0)])
def test_a_static_n_diverges_where_its_polls_carry_less_than_the_load(batch: int, load: float) -> None:
    # N messages every 50 ms are all that can leave; the rest of the load stays.
    run, leaving = _static(batch, load), batch / 0.05
    if leaving < load:
        assert run.waiting == pytest.approx((load - leaving) * run.end_s, rel=0.15), f"seed {SEED}"
    else:
        assert run.waiting < 60, f"seed {SEED}"


@pytest.mark.parametrize("load", LOADS)
def test_auto_is_at_least_as_fast_as_the_best_static_setting(load: float) -> None:
    best_s = min(
        run_publisher(
            Static(batch=batch, poll_s=poll_s), Poisson(load), seed=SEED, duration_s=30.0, skip_s=5.0
        ).mean_s
        for batch in (1, 10)
        for poll_s in (0.0, 0.005, 0.05, 0.2)
    )
    run = run_publisher(tuned("auto"), Poisson(load), seed=SEED, duration_s=30.0, skip_s=5.0)
    assert run.mean_s <= 1.02 * best_s
    assert run.mean_batch < 1.5  # the broker is not the bottleneck, so nothing waits for a batch


@pytest.mark.parametrize("name", ["auto", "batch-aimd"])
def test_under_congestion_the_untuned_publisher_drops_and_the_tuned_ones_do_not(name: str) -> None:
    def run(controller: Controller[Any]) -> PublisherRun:
        return run_publisher(controller, Poisson(35.0), seed=SEED, duration_s=60.0, batch=10, far=CONGESTED)

    assert run(untuned(10)).dropped > 50
    kept = run(tuned(name))
    assert kept.dropped == 0
    assert kept.waiting > 100  # the congestion was real: more came than the broker took


def test_requests_go_before_transfers_in_the_pool() -> None:
    # One worker: it writes the first two requests until 42 ms. By then the transfer of the first waits for it, and
    # since 30 ms a third request, which goes before although it came later.
    def first_response_s(receive_first: bool) -> float:
        near = NearSide(workers=1, receive_s=0.02, receive_first=receive_first)
        requests = Trace((0.0, 0.001, 0.030))
        return float(run_publisher(Static(batch=1), requests, seed=SEED, duration_s=5.0, near=near).response_s[0])

    assert first_response_s(True) - first_response_s(False) == pytest.approx(0.02 + NearSide().write_s)


def test_nothing_is_lost_and_nothing_invented() -> None:
    burst, near = Bursts(size=40, every_s=1000.0), NearSide(workers=4, buffer=20)
    run = run_publisher(tuned("auto"), burst, seed=SEED, duration_s=60.0, near=near)
    # 4 are with the workers at once, 20 in the buffer, the rest is turned away
    assert (len(run.response_s), run.dropped, run.waiting) == (24, 16, 0)
    assert sum(count for _, count in run.batch_sizes) == 24
    assert len(run.read_after_s) == 24
    assert (run.read_after_s >= ROUND_TRIP_S / 2).all()


@pytest.mark.parametrize("name", ["auto", "batch-aimd", "static"])
def test_a_seed_fixes_a_run(name: str) -> None:
    def run(seed: int) -> PublisherRun:
        controller = untuned(5) if name == "static" else tuned(name)
        return run_publisher(controller, Poisson(35.0), seed=seed, duration_s=20.0, far=CONGESTED)

    one, again, other = run(7), run(7), run(8)
    assert np.array_equal(one.response_s, again.response_s)
    assert one.wanted == again.wanted
    assert not np.array_equal(one.response_s[:50], other.response_s[:50])


def test_publishers_share_a_bottleneck_fairly_and_use_it() -> None:
    far = FarSide(round_trip_s=0.013, intake_s=0.002, read_rate=1e5)
    shared = run_sharing(Auto, publishers=4, join_every_s=2.0, after_s=15.0, far=far)
    late = shared[:, -5:].sum(axis=1)
    assert jain(late) >= 0.97, f"{late}"
    assert late.sum() >= 0.9 * 5.0 / far.intake_s, f"{late}"


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidValue, match=r"read_rate must be a number of messages a second > 0, got 0.0"):
        FarSide(read_rate=0.0)
    with pytest.raises(InvalidValue, match=r"round_trip_s must be a number of seconds >= 0, got -1.0"):
        FarSide(round_trip_s=-1.0)
    with pytest.raises(InvalidValue, match=r"number of messages >= 1, got 0"):
        FarSide(queue=0)
    with pytest.raises(InvalidValue, match=r"must be >= 1, got 0 and 100"):
        NearSide(workers=0)
    with pytest.raises(InvalidValue, match=r"less than the duration of 5 s, got 5.0"):
        run_publisher(tuned("auto"), Poisson(1.0), seed=1, duration_s=5.0, skip_s=5.0)
