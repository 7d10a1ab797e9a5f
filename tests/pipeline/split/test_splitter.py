"""Splitter, a lane's plans, result queues and combiner on a real log, without Spark: whoever dies, wherever.

The lanes here do what Spark does with the source: plan a batch, write the plan down, read it, hand the rows to the
lane; after a crash, the planned batch is done again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.combine.combiner import Combiner, CombinerSettings
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import LanesRequest, QueueLevels, cursor_name, lanes_name, last_bodies
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.pipeline.split.shares import END, ShareEnd
from flyball.pipeline.split.splitter import Splitter, SplitterSettings
from flyball.pipeline.split.ticks import Tick, ticks_name
from flyball.pipeline.sql.columns import EVENT, MALFORMED
from flyball.pipeline.tier1.result_queues import Lanes
from tests.pipeline.run.test_inline import config, expected, publish, random_bodies, results

SEED = 29


class Lane:
    """One lane on the source, with what Spark's checkpoint keeps: the batches that were planned."""

    def __init__(self, rig: Rig, lane: int) -> None:
        self._rig, self.lane = rig, lane
        self.offsets: list[dict[str, Any]] = []
        self.done = 0
        self.start()

    def start(self) -> None:
        """As after kill -9: nothing but the checkpoint is left."""
        rig = self._rig
        lane = LaneOptions(
            result_queue="results",
            lane=self.lane,
            queue_bytes=rig.config.lanes.queue_bytes,
            free_bytes=rig.config.lanes.free_bytes,
        )
        self._reader = LogStreamReader(
            {
                "url": rig.url,
                "log": "events",
                "columns": rig.config.columns,
                "event_time": "event_time",
                "lanes": "2",
                "interval_s": "0.001",
                "_pipeline": lane.to_json(),
            }
        )
        self._lanes = Lanes(rig.sinks, rig.url, "results", rig.config.lanes.queue_bytes)
        self._lanes.open(self.lane)

    def step(self, die: str = "") -> bool:
        """One batch; `die` "planned": before it is worked on, "written": before that is written down."""
        if not self.offsets:
            self.offsets.append(self._reader.initialOffset())
        if self.done == len(self.offsets) - 1:
            end = self._reader.latestOffset(self.offsets[-1], None)  # type: ignore[arg-type] # not looked at
            if end is self.offsets[-1]:
                return False
            self.offsets.append(end)
        if die == "planned":
            self.start()
            return True
        self._work(self.offsets[self.done], self.offsets[self.done + 1])
        if die == "written":
            self.start()
            return True
        self.done += 1
        return True

    def _work(self, begin: dict[str, Any], end: dict[str, Any]) -> None:
        tables = [
            pa.Table.from_batches(list(self._reader.read(part))) for part in self._reader.partitions(begin, end)
        ]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        kinds = rows["_kind"]
        events = rows.filter(pc.equal(kinds, EVENT))
        kept = events.filter(pc.greater(events["load"], 0.5)).drop_columns(["_kind", "_error", "_body"])
        ends = [ShareEnd.from_json(body) for body in rows.filter(pc.equal(kinds, END))["_body"].to_pylist()]
        self._lanes.write(self.done, kept, rows.filter(pc.equal(kinds, MALFORMED)), ends)


class Rig:
    def __init__(self, folder: Path, settings: PipelineConfig) -> None:
        self.url, self.config, self._folder = f"sqlite:///{folder / 'broker.db'}", settings, folder
        self.sinks = LogSinks(self.url)
        self.sinks.open()
        self.sinks.declare("events")
        self.sinks.add(lanes_name("results"), None)
        self.sinks.add(cursor_name("results"), None)
        self.now_s = 0.0
        self.combiner = self._new_combiner()
        self.splitter = self._new_splitter()
        self.splitter.step()
        self.lanes = [Lane(self, lane) for lane in range(settings.lanes.count)]

    def restart_combiner(self) -> None:
        self.combiner.stop()
        self.combiner = self._new_combiner()

    def restart_splitter(self) -> None:
        self.splitter.close()
        self.splitter = self._new_splitter()

    def set_lanes(self, count: int) -> None:
        self.sinks.append_unsequenced(lanes_name("results"), b'{"lanes": %d}' % count)
        self.lanes += [Lane(self, lane) for lane in range(len(self.lanes), count)]

    def run_dry(self) -> None:
        moved = True
        while moved:
            self.now_s += 1.0
            moved = self.splitter.step()
            for lane in self.lanes:
                moved |= lane.step()
            while self.combiner.step():
                moved = True

    def _new_combiner(self) -> Combiner:
        made = Combiner(
            self.url, self.sinks, CombinerSettings.of(self.config), self._folder / "held", [0], lambda: self.now_s
        )
        made.open()
        return made

    def _new_splitter(self) -> Splitter:
        made = Splitter(self.url, self.sinks, SplitterSettings.of(self.config), lambda: self.now_s)
        made.open()
        return made

    def close(self) -> None:
        self.splitter.close()
        self.combiner.stop()
        self.sinks.close()


@pytest.fixture
def small_queues(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, config(count=2, queue_bytes=40_000, free_bytes=20_000, timeout_s=1e9))
    yield rig
    rig.close()


@pytest.mark.parametrize("seed", range(4))
def test_whoever_dies_whenever_results_are_complete_and_in_order(seed: int, small_queues: Rig) -> None:
    rng, rig = random.Random(SEED + seed), small_queues
    bodies: list[bytes] = []
    for _ in range(60):
        rig.now_s += rng.uniform(0.0, 1.0)
        if rng.random() < 0.4:
            part = random_bodies(rng, len(bodies), rng.randint(1, 120))
            publish(rig.url, part)
            bodies += part
        if rng.random() < 0.1:
            rig.set_lanes(rng.randint(1, 4))
        for _ in range(rng.randint(0, 3)):
            rng.choice([rig.restart_splitter, rig.restart_combiner, rig.splitter.step, rig.combiner.step])()
            rng.choice(rig.lanes).step(die=rng.choice(["", "planned", "written"]))
    publish(rig.url, [END_OF_INPUT])
    rig.run_dry()
    assert results(rig.url) == expected(bodies)
    levels = QueueLevels(rig.url, "results").read(range(len(rig.lanes)))
    assert sum(level.events for level in levels) == len(bodies)
    assert len(rig.lanes) > 2
    assert rig.combiner.late == 0


def test_a_tick_that_does_not_fit_comes_in_parts_and_the_order_stays(small_queues: Rig) -> None:
    rig = small_queues
    bodies = random_bodies(random.Random(3), 0, 3000)
    publish(rig.url, [*bodies, END_OF_INPUT])
    rig.run_dry()
    assert any(offset["more"] for lane in rig.lanes for offset in lane.offsets[1:])
    assert results(rig.url) == expected(bodies)


def test_lanes_join_and_leave(tmp_path: Path) -> None:
    rig, rng, bodies = Rig(tmp_path, config(count=2, timeout_s=1e9)), random.Random(SEED), list[bytes]()
    try:
        for lanes in (2, 4, 1, 3):
            rig.set_lanes(lanes)
            for _ in range(3):
                part = random_bodies(rng, len(bodies), 200)
                publish(rig.url, part)
                bodies += part
                rig.run_dry()
            assert len(rig.splitter.weights) == lanes
        publish(rig.url, [END_OF_INPUT])
        rig.run_dry()
        assert results(rig.url) == expected(bodies)
        levels = QueueLevels(rig.url, "results").read(range(4))
        assert [level.last for level in levels] == [False, False, False, True]
        assert all(level.events for level in levels)
    finally:
        rig.close()


def test_a_lane_that_comes_to_read_only_after_it_has_left_again_misses_nothing(tmp_path: Path) -> None:
    rig, rng, bodies = Rig(tmp_path, config(count=2, timeout_s=1e9)), random.Random(SEED), list[bytes]()
    try:
        for lanes in (2, 3, 1):
            rig.set_lanes(lanes)
            part = random_bodies(rng, len(bodies), 200)
            publish(rig.url, part)
            bodies += part
            for _ in range(3):
                rig.now_s += 1.0
                rig.splitter.step()
        publish(rig.url, [END_OF_INPUT])
        rig.run_dry()
        assert results(rig.url) == expected(bodies)
    finally:
        rig.close()


def test_a_dead_lane_holds_nobody_up_for_longer_than_it_may_and_its_results_are_not_lost(tmp_path: Path) -> None:
    rig, rng, bodies = Rig(tmp_path, config(count=2, timeout_s=20.0)), random.Random(SEED), list[bytes]()
    try:
        for second in range(40):
            part = random_bodies(rng, len(bodies), 100)
            publish(rig.url, part)
            bodies += part
            rig.now_s += 1.0
            rig.splitter.step()
            rig.lanes[0].step()
            if second < 4:
                rig.lanes[1].step()
            while rig.combiner.step():
                pass
            if second == 20:
                before = len(results(rig.url))
        # Event time has gone on without the lane, and with it the results of the other.
        assert len(results(rig.url)) > before + 300
        publish(rig.url, [END_OF_INPUT])
        rig.run_dry()
        late = rig.combiner.late
        in_order = results(rig.url)
        assert late > 0
        assert in_order == sorted(in_order)
        assert set(in_order) < set(expected(bodies))
        assert len(in_order) + late == len(expected(bodies))
    finally:
        rig.close()


def test_a_lane_that_stands_still_gets_less_and_others_are_given_more_of_a_backlog(tmp_path: Path) -> None:
    settings = config(count=2, timeout_s=1e9).model_copy(update={"max_rows": 2000})
    rig = Rig(tmp_path, settings)
    try:
        rng, count = random.Random(SEED), 0
        for second in range(30):
            rig.now_s += 1.0
            publish(rig.url, random_bodies(rng, count, 300))
            count += 300
            rig.splitter.step()
            rig.lanes[0].step()
            if second < 5:
                rig.lanes[1].step()
        assert rig.splitter.weights[1] < 0.25
        publish(rig.url, random_bodies(rng, count, 20_000))
        for _ in range(10):
            rig.now_s += 1.0
            rig.splitter.step()
        with open_log_reader(rig.url, ticks_name("results")) as reader:
            tick = Tick.from_json(last_bodies(reader, 1)[0])
        waiting = tick.assigned_events[0] - QueueLevels(rig.url, "results").read([0])[0].events_read_total
        assert 1500 < waiting < 3500  # the rest stays in the input, for whoever will be faster
        assert tick.next[0] < 30 * 300 + 10_000
    finally:
        rig.close()


def test_balancing_can_be_turned_off_and_on_while_it_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, config(count=2, timeout_s=1e9))
    try:
        rng, count = random.Random(SEED), 0

        def run(seconds: int, lanes: int = 1) -> tuple[float, ...]:
            nonlocal count
            for _ in range(seconds):
                rig.now_s += 1.0
                publish(rig.url, random_bodies(rng, count, 300))
                count += 300
                rig.splitter.step()
                for lane in rig.lanes[:lanes]:
                    lane.step()
            return rig.splitter.weights

        run(5, lanes=2)
        assert run(20)[1] < 0.4  # it stands still
        rig.sinks.append_unsequenced(lanes_name("results"), LanesRequest(balance=False).to_json())
        assert run(5) == (0.5, 0.5)
        rig.sinks.append_unsequenced(lanes_name("results"), LanesRequest(balance=True).to_json())
        assert run(20)[1] < 0.4
        assert len(rig.splitter.weights) == 2
    finally:
        rig.close()
