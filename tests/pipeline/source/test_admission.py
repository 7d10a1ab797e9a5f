"""Admission on real result queues: what it reads there decides how much comes in, and who gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flyball.pipeline.logs.levels import QueueLevels, cursor_body, cursor_name
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy import FlowControl
from flyball.pipeline.source.admission import Admission
from flyball.pipeline.split.shares import ShareEnd
from flyball.pipeline.tier1.result_queues import Lanes


class Rig:
    """Two lanes whose batches take as long, and make as much, as a test says."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sinks = LogSinks(url)
        self.sinks.open()
        self.lanes = Lanes(self.sinks, url, "results", 1 << 20)
        self.sinks.add(cursor_name("results"), None)
        self.batch = 0
        for lane in (0, 1):
            self.lanes.open(lane)

    def run(self, lane: int, events: int, seconds: float, text_bytes: int = 10) -> None:
        rows = pa.table(
            {
                "text": ["x" * text_bytes] * events,
                "event_time": [1.0] * events,
                "_partition": pa.array([0] * events, pa.int32()),
                "_offset": pa.array(range(events), pa.int64()),
            }
        )
        end = ShareEnd(lane, ((0, 0, events),), (0, 1), False, events, seconds, 1.0, False)
        self.lanes.open(lane).write(self.batch, rows, end, malformed=0)
        self.batch += 1

    def levels(self) -> QueueLevels:
        return QueueLevels(self.url, "results")

    def take_everything(self) -> None:
        levels = self.levels().read([0, 1])
        self.sinks.append_unsequenced(
            cursor_name("results"), cursor_body({lane: level.appended_bytes for lane, level in enumerate(levels)})
        )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(f"sqlite:///{tmp_path / 'broker.db'}")
    yield made
    made.sinks.close()


def test_the_slower_lane_gets_less_until_both_take_equally_long(rig: Rig) -> None:
    admission = Admission((0, 1), 10_000, 2.0, rig.levels(), balance=True)
    slowness: tuple[float, ...] = (3.0, 1.0)
    weights: tuple[float, ...] = (0.5, 0.5)
    for second in range(40):
        weights = admission.decide(float(second), backlog=1000).weights
        for lane in (0, 1):
            rig.run(lane, events=50 + second, seconds=weights[lane] * slowness[lane])
    assert weights[0] == pytest.approx(0.25, abs=0.02)
    assert weights[0] + weights[1] == pytest.approx(1.0)


@pytest.mark.parametrize(("batch_s", "region"), [(0.2, "idle"), (2.0, "loaded")])
def test_shares_move_less_the_more_loaded_the_lanes_are(rig: Rig, batch_s: float, region: str) -> None:
    """A loaded lane answers its share more strongly, so the gains in force follow the times that batches take."""
    admission = Admission((0, 1), 10_000, 2.0, rig.levels(), balance=True)
    now = 0.0
    for took_s in (0.2, batch_s, batch_s, batch_s, batch_s):
        admission.decide(now, backlog=1000)
        admission.begin(now, [500, 500])
        now += took_s
    for lane, seconds in ((0, 1.5), (1, 1.0)):
        rig.run(lane, events=50, seconds=seconds)
    admission.decide(now, backlog=0)  # the last batch is done
    moved = 0.5 - admission.decide(now + 1.0, backlog=1000).weights[0]
    assert 0.005 < moved < 0.015 if region == "loaded" else moved > 0.03, moved


def test_without_balancing_shares_stay_equal(rig: Rig) -> None:
    admission = Admission((0, 1), 10_000, 2.0, rig.levels(), balance=False)
    for second in range(5):
        assert admission.decide(float(second), backlog=1000).weights == (0.5, 0.5)
        rig.run(0, 50, seconds=9.0)
        rig.run(1, 50, seconds=0.1)


def test_a_full_queue_keeps_events_out_and_an_emptied_one_lets_them_in_again(rig: Rig) -> None:
    flow = FlowControl(limit_bytes=200_000, reference_bytes=100_000)
    admission = Admission((0, 1), 10_000, 2.0, rig.levels(), flow)
    first = admission.decide(0.0, backlog=10_000)
    assert 0 < first.events < 10_000
    for _ in range(3):
        rig.run(0, 1000, seconds=0.1, text_bytes=100)  # far more than lane 0's queue may hold
    admission.begin(0.0, [1500, 1500])
    for second in (1.0, 3.0, 5.0):
        assert admission.decide(second, backlog=10_000).events == 0
    rig.take_everything()
    assert admission.decide(7.0, backlog=10_000).events > 0


def test_a_batch_is_no_larger_than_an_interval_s_work(rig: Rig) -> None:
    admission = Admission((0,), 1_000_000, 2.0)
    now, sizes = 0.0, []
    for _ in range(12):  # the source gets through 5000 events a second
        events = admission.decide(now, backlog=1_000_000).events
        admission.begin(now, [events])
        sizes.append(events)
        now += events / 5000
    assert sizes[0] == 1000
    assert sizes[-1] == pytest.approx(10_000, rel=0.05)
    assert admission.decide(now, backlog=30).events == 30
    assert rig.batch == 0
