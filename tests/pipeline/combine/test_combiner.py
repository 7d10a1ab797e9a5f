"""Order, lateness and exactly once of the combiner on a real log, against plain Python, killed at its writes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flyball.brokers import connect
from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import Unconfirmed
from flyball.pipeline.combine import cursors
from flyball.pipeline.combine.combiner import Combiner, CombinerSettings
from flyball.pipeline.combine.cursors import ResultsLost
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import QueueLevels
from flyball.pipeline.logs.writer import LogSinks, SinkFailed
from flyball.pipeline.split.shares import ShareEnd
from flyball.pipeline.tier1.result_queues import Lanes

SCHEMA = pa.schema(
    [("load", pa.float64()), ("event_time", pa.float64()), ("_partition", pa.int32()), ("_offset", pa.int64())]
)
SETTINGS = CombinerSettings("results", "late", "event_time", 5.0, 30.0, 1 << 20, 10.0)

Row = tuple[float, int]
"""(event time, offset in the input)"""


@dataclass(frozen=True)
class Tick:
    """What each lane brings, by lane; `ends`: the input ends with it."""

    shares: dict[int, list[Row]]
    ends: bool = False


class Killed(Exception):
    """Stands for kill -9: nothing after it happens."""


class KilledSinks(LogSinks):
    """Dies instead of, or right after, the append with a given number."""

    def __init__(self, url: str, at: float = math.inf, *, after: bool = False) -> None:
        super().__init__(url)
        self._left, self._after = at, after

    def append(self, log: str, producer: str, batch: int, bodies: Sequence[bytes]) -> None:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise Killed
        super().append(log, producer, batch, bodies)
        if self._left < 0:
            raise Killed


class AwaySinks(LogSinks):
    """A broker that is away at first and now and then: it stored what was sent, or not, and did not say so."""

    def __init__(self, url: str, rng: random.Random) -> None:
        super().__init__(url)
        self._rng = rng
        self.failures = 0

    def append(self, log: str, producer: str, batch: int, bodies: Sequence[bytes]) -> None:
        is_away = self.failures == 0 or self._rng.random() < 0.2
        if not is_away or self._rng.random() < 0.5:
            super().append(log, producer, batch, bodies)
        if is_away:
            self.failures += 1
            raise SinkFailed("not confirmed") from Unconfirmed("no answer")


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"load": offset / 7, "event_time": at, "_partition": 0, "_offset": offset} for at, offset in rows],
        schema=SCHEMA,
    )


def fill(url: str, ticks: Sequence[Tick], first: int = 0) -> None:
    sinks = LogSinks(url)
    sinks.open()
    lanes = Lanes(sinks, url, "results", 1 << 22)
    for number, tick in enumerate(ticks, start=first):
        members = tuple(sorted(tick.shares))
        following = tuple(sorted(ticks[number - first + 1].shares)) if number - first + 1 < len(ticks) else members
        for lane, rows in tick.shares.items():
            ranges = tuple((0, offset, offset + 1) for _, offset in rows)
            latest = max((at for at, _ in rows), default=None)
            end = ShareEnd(lane, ranges, members, lane not in following, len(rows), 0.1, latest, tick.ends)
            lanes.open(lane).write(number, table(rows), end, malformed=0)
    sinks.close()


def combine(url: str, folder: Path, sinks: LogSinks, settings: CombinerSettings = SETTINGS) -> Combiner:
    """Run until nothing is left to do."""
    sinks.open()
    combiner = Combiner(url, sinks, settings, folder / "held", lanes=[0, 1], clock=lambda: 0.0)
    try:
        combiner.open()
        while combiner.step():
            pass
    finally:
        sinks.close()
    return combiner


def written(url: str) -> list[entry.Entry]:
    with open_log_reader(url, "results") as reader:
        return [entry.decode(body) for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]


def in_order(url: str) -> list[Row]:
    rows = [row for found in written(url) for row in entry.in_order(found).to_pylist()]
    return [(row["event_time"], row["_offset"]) for row in rows]


def breaks_a_promise(url: str) -> list[float]:
    """Times of rows that stand behind a mark although they are older: rules would drop them unseen."""
    broken, marked_s = [], -math.inf
    for found in written(url):
        broken += [at for at in entry.in_order(found)["event_time"].to_pylist() if at < marked_s]
        mark_s = found.header["mark_s"]
        marked_s = marked_s if mark_s is None else max(marked_s, mark_s)
    return broken


def late_log(url: str) -> list[int]:
    with open_log_reader(url, "late") as reader:
        bodies = [body for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]
    return sorted(json.loads(body)["_offset"] for body in bodies)


def reference(ticks: Sequence[Tick], watermark_s: float) -> tuple[list[Row], list[int]]:
    """The same in plain Python: (rows in order, offsets of the late ones)."""
    held: list[Row] = []
    out: list[Row] = []
    late: list[int] = []
    latest = marked = -math.inf
    for tick in ticks:
        for lane in sorted(tick.shares):
            for row in tick.shares[lane]:
                if row[0] < marked or (out and row <= out[-1]):
                    late.append(row[1])
                else:
                    held.append(row)
        latest = max([latest, *(at for rows in tick.shares.values() for at, _ in rows)])
        limit = math.inf if tick.ends else latest - watermark_s
        going = sorted(row for row in held if row[0] <= limit)
        out += going
        held = [row for row in held if row[0] > limit]
        # Whoever reads the rows has been told that time is over, also where no row told it.
        marked = limit if going or limit - marked >= 1 else marked
    return out, sorted(late)


def random_ticks(rng: random.Random, *, disorder_s: float = 4.0) -> list[Tick]:
    """Skewed lanes, empty shares, equal times, some hopelessly late events; lane 2 comes and goes."""
    ticks, offset, skew = [], 0, rng.choice([0.5, 0.9, 1.0])
    for number in range(rng.randint(3, 25)):
        shares: dict[int, list[Row]] = {0: [], 1: []}
        if 5 <= number < 9:
            shares[2] = []
        for _ in range(rng.choice([0, 1, 5, 40])):
            at = number * 2.0 + round(rng.uniform(-disorder_s, 0.0), 1)
            if rng.random() < 0.02:
                at -= 100.0
            lane = 0 if rng.random() < skew else rng.choice(list(shares))
            shares[lane].append((at, offset))
            offset += 1
        ticks.append(Tick(shares))
    return [*ticks, Tick({0: [], 1: []}, ends=True)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'broker.db'}"


@pytest.mark.parametrize("seed", range(12))
def test_order_and_lateness_equal_the_reference(tmp_path: Path, url: str, seed: int) -> None:
    ticks = random_ticks(random.Random(seed))
    fill(url, ticks)
    combiner = combine(url, tmp_path, LogSinks(url))
    rows, late = reference(ticks, SETTINGS.watermark_s)
    assert in_order(url) == rows, f"seed {seed}"
    assert late_log(url) == late, f"seed {seed}"
    assert breaks_a_promise(url) == [], f"seed {seed}"
    assert combiner.late == len(late)
    assert combiner.buffered_rows == 0
    assert combiner.totals.results == len(rows) + len(late)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_a_write_it_goes_on_and_each_row_stands_there_once(
    tmp_path: Path, seed: int, after: bool
) -> None:
    ticks = random_ticks(random.Random(100 + seed))
    rows, late = reference(ticks, SETTINGS.watermark_s)
    clean = f"sqlite:///{tmp_path / 'clean.db'}"
    fill(clean, ticks)
    combine(clean, tmp_path, LogSinks(clean))
    writes = len(written(clean))
    assert writes > 3
    for at in random.Random(seed).sample(range(writes), min(writes, 5)):
        url = f"sqlite:///{tmp_path / f'killed-{at}.db'}"
        fill(url, ticks)
        with pytest.raises(Killed):
            combine(url, tmp_path, KilledSinks(url, at, after=after))
        combiner = combine(url, tmp_path, LogSinks(url))
        assert in_order(url) == rows, f"seed {seed}, killed at write {at}"
        assert late_log(url) == late, f"seed {seed}, killed at write {at}"
        assert combiner.totals.results == len(rows) + len(late)


def test_rows_beyond_the_memory_go_to_disk_and_come_back_in_order(tmp_path: Path, url: str) -> None:
    rng = random.Random(4)
    ticks = [
        Tick(
            {
                lane: [(rng.uniform(0, 1000), n) for n in range(k * 400 + lane * 200, k * 400 + lane * 200 + 200)]
                for lane in (0, 1)
            }
        )
        for k in range(20)
    ]
    ticks.append(Tick({0: [], 1: []}, ends=True))
    fill(url, ticks)
    settings = CombinerSettings("results", "late", "event_time", 2000.0, 30.0, 20_000, 10.0)
    sinks = LogSinks(url)
    sinks.open()
    combiner = Combiner(url, sinks, settings, tmp_path / "held", lanes=[0, 1], clock=lambda: 0.0)
    combiner.open()
    most_memory, most_files = 0, 0
    while combiner.step():
        most_memory = max(most_memory, combiner._buffer.memory_bytes)
        most_files = max(most_files, len(list((tmp_path / "held").glob("*"))))
    sinks.close()
    assert in_order(url) == reference(ticks, 2000.0)[0]
    assert most_files > 2
    assert most_memory <= 20_000
    assert not list((tmp_path / "held").glob("*"))


def test_a_dead_lane_holds_the_others_up_for_the_set_time_only(tmp_path: Path, url: str) -> None:
    now = [0.0]
    ticks = [Tick({0: [(k * 10.0, 2 * k)], 1: [(k * 10.0 + 1, 2 * k + 1)]}) for k in range(5)]
    sinks = LogSinks(url)
    sinks.open()
    lanes = Lanes(sinks, url, "results", 1 << 22)

    def bring(number: int, lane: int) -> None:
        rows = ticks[number].shares[lane]
        end = ShareEnd(lane, ((0, rows[0][1], rows[0][1] + 1),), (0, 1), False, 1, 0.1, rows[0][0], False)
        lanes.open(lane).write(number, table(rows), end, malformed=0)

    combiner = Combiner(url, sinks, SETTINGS, tmp_path / "held", lanes=[0, 1], clock=lambda: now[0])
    combiner.open()
    bring(0, 0)
    bring(0, 1)
    for number in (1, 2, 3):
        bring(number, 0)

    def run() -> None:
        while combiner.step():
            pass

    run()
    assert in_order(url) == []
    now[0] = 29.9
    run()
    assert in_order(url) == []
    now[0] = 30.0
    run()
    assert [at for at, _ in in_order(url)] == [0.0, 1.0, 10.0, 20.0]
    for number in (1, 2, 3):  # the lane comes back: what still fits is put in order, the rest is late
        bring(number, 1)
    run()
    assert late_log(url) == [3, 5]  # 21.0 too: event time had come to 25.0
    for lane in (0, 1):
        bring(4, lane)
    run()
    assert [at for at, _ in in_order(url)] == [0.0, 1.0, 10.0, 20.0, 30.0, 31.0]
    assert combiner.buffered_rows == 2
    sinks.close()


def test_the_free_space_sensor_sees_what_was_appended_and_not_taken(tmp_path: Path, url: str) -> None:
    ticks = [Tick({0: [(1.0 * k, k)], 1: []}) for k in range(5)]
    fill(url, ticks)
    before = QueueLevels(url, "results").read([0, 1])
    assert before[0].queued_bytes == before[0].appended_bytes > 0
    assert (before[0].events, before[0].batch_s) == (5, 0.1)
    combine(url, tmp_path, LogSinks(url))
    after = QueueLevels(url, "results").read([0, 1, 7])
    assert [level.queued_bytes for level in after] == [0, 0, 0]
    assert after[0].appended_bytes == before[0].appended_bytes


def test_a_repeated_batch_changes_neither_the_queue_nor_its_totals(url: str) -> None:
    ticks = [Tick({0: [(float(k), k)]}) for k in range(3)]
    fill(url, ticks)
    before = QueueLevels(url, "results").read([0])
    fill(url, ticks[2:], first=2)  # a new process repeats the last batch
    assert QueueLevels(url, "results").read([0]) == before
    fill(url, [Tick({0: [(9.0, 9)]})], first=3)
    assert QueueLevels(url, "results").read([0])[0].events == 4


def test_results_that_retention_took_away_are_missed_and_not_skipped(tmp_path: Path, url: str) -> None:
    fill(url, [Tick({0: [(float(k), k)], 1: []}) for k in range(3)])
    combine(url, tmp_path, LogSinks(url))

    async def purge() -> Any:
        async with await connect(url) as broker:
            return await broker.purge("results.lane-0")

    try:
        asyncio.run(purge())
    except NotImplementedError:
        pytest.skip("this broker cannot purge a log")
    fill(url, [Tick({0: [(100.0, 100)], 1: []}), Tick({0: [], 1: []}, ends=True)], first=3)
    with pytest.raises(ResultsLost, match=r"make lanes.queue_bytes larger"):
        combine(url, tmp_path, LogSinks(url))


def test_where_pipelines_feed_it_the_slowest_counts_until_it_is_silent_for_too_long(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    sinks = LogSinks(url)
    sinks.open()
    lanes = Lanes(sinks, url, "results", 1 << 22)
    marks: list[dict[str, float]] = [{"lyon": 30.0, "paris": 10.0}, {"lyon": 60.0}]
    for tick, promised in enumerate(marks):
        rows = [(20.0 * tick + at, 4 * tick + at) for at in (1, 9, 15)]
        ranges = ((0, 4 * tick, 4 * tick + 4),)
        end = ShareEnd(0, ranges, (0,), False, 3, 0.1, 20.0 * tick + 15, False, marks=promised)
        lanes.open(0).write(tick, table(rows), end, malformed=0)
    settings = dataclasses.replace(SETTINGS, upstream=("lyon", "paris"), upstream_timeout_s=60.0)
    now_s = 0.0
    combiner = Combiner(url, sinks, settings, tmp_path / "held", lanes=[0], clock=lambda: now_s)
    combiner.open()
    while combiner.step():
        pass
    assert [at for at, _ in in_order(url)] == [1.0, 9.0]
    now_s = 60.0
    while combiner.step():
        pass
    assert [at for at, _ in in_order(url)] == [1.0, 9.0, 15.0, 21.0, 29.0, 35.0]
    sinks.close()


def test_one_that_was_given_up_is_not_taken_for_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    sinks = LogSinks(url)
    sinks.open()
    lanes = Lanes(sinks, url, "results", 1 << 22)
    settings = dataclasses.replace(SETTINGS, upstream=("lyon", "paris"), upstream_timeout_s=60.0)
    now_s = 0.0
    combiner = Combiner(url, sinks, settings, tmp_path / "held", lanes=[0], clock=lambda: now_s)
    combiner.open()

    def bring(tick: int, at: float, promised: dict[str, float]) -> None:
        end = ShareEnd(0, ((0, tick, tick + 1),), (0,), False, 1, 0.1, at, False, marks=promised)
        lanes.open(0).write(tick, table([(at, tick)]), end, malformed=0)
        while combiner.step():
            pass

    bring(0, 20.0, {"paris": 10.0, "lyon": math.inf})
    assert in_order(url) == []
    now_s = 60.0
    while combiner.step():
        pass
    # Nothing of lyon is left to judge, so its windows close; paris is not there, and that is not the end.
    assert [at for at, _ in in_order(url)] == [20.0]
    assert written(url)[-1].header["mark_s"] == 20.0 + settings.end_mark_s
    assert not any(found.header["ends"] for found in written(url))
    bring(1, 25.0, {"paris": 25.0})
    assert late_log(url) == [1]
    bring(2, 50.0, {"paris": math.inf})
    assert [at for at, _ in in_order(url)] == [20.0, 50.0]
    assert combiner.ended
    assert breaks_a_promise(url) == []
    sinks.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_is_away_now_and_then_changes_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ticks = random_ticks(rng)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    fill(url, ticks)
    sinks = AwaySinks(url, rng)
    sinks.open()
    combiner = Combiner(url, sinks, SETTINGS, tmp_path / "held", lanes=[0, 1], clock=lambda: 0.0)
    combiner.start()
    try:
        combiner.drain()
    finally:
        combiner.stop()
        sinks.close()
    assert sinks.failures > 0
    expected_rows, expected_late = reference(ticks, SETTINGS.watermark_s)
    assert in_order(url) == expected_rows
    assert late_log(url) == expected_late
    assert combiner.late == len(expected_late)


def test_a_drain_that_watches_a_combiner_opening_its_queues_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_slowly(url: str, log: str) -> LogReader:
        reader = open_log_reader(url, log)
        time.sleep(0.05)  # the thread that drains looks every 20 ms
        return reader

    rng = random.Random(1)
    ticks = random_ticks(rng)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    fill(url, ticks)
    sinks = AwaySinks(url, rng)
    sinks.open()
    monkeypatch.setattr(cursors, "open_log_reader", open_slowly)
    combiner = Combiner(url, sinks, SETTINGS, tmp_path / "held", lanes=[0, 1], clock=lambda: 0.0)
    combiner.start()
    try:
        combiner.drain()
    finally:
        combiner.stop()
        sinks.close()
    assert sinks.failures > 0
    assert in_order(url) == reference(ticks, SETTINGS.watermark_s)[0]
