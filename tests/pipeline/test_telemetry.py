"""What the lanes' loops did goes to the loops' telemetry."""

from __future__ import annotations

import pickle
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flyball.control.record import LoopRecord
from flyball.pipeline.logs.levels import Level
from flyball.pipeline.policy import FlowControl
from flyball.pipeline.source.admission import Admission
from flyball.pipeline.telemetry import LoopRecordFile, read_flow


class Scripted:
    """A sensor that says what a test wants: 20,000 bytes more each second, and one lane twice as slow."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, lanes: Sequence[int]) -> list[Level]:
        self.reads += 1
        return [
            Level(self.reads * 20_000, self.reads * 20_000, self.reads * 100, 100, 0.1 * (lane + 1))
            for lane in lanes
        ]


def recorded(seconds: int) -> list[LoopRecord]:
    records: list[LoopRecord] = []
    flow = FlowControl(1_000_000, 600_000)
    admission = Admission((0, 1), 1000, 2.0, Scripted(), flow, balance=True, on_record=records.append)
    for second in range(seconds):
        admission.decide(float(second), backlog=500)
        admission.begin(float(second), (50, 50))
    return records


def test_every_interval_of_flow_control_and_every_move_of_the_shares_leaves_a_record() -> None:
    records = recorded(seconds=9)
    flow = [record for record in records if record.loop == "lane-0 flow"]
    assert [record.time for record in flow] == [2.0, 4.0, 6.0, 8.0]
    assert [record.setpoint for record in flow] == [600_000.0] * 4
    assert [record.measurement for record in flow] == [940_000.0, 900_000.0, 860_000.0, 820_000.0]
    assert flow[1].applied == pytest.approx(2 * 50 * 200.0)  # two batches of 50 events, 200 bytes each
    shares = [record for record in records if record.loop == "lanes balance"]
    assert len(shares) == 9
    assert isinstance(shares[-1].command, tuple)
    assert shares[-1].command[0] > 0.5 > shares[-1].command[1]


def test_records_go_to_a_file_with_dates_also_after_pickling(tmp_path: Path) -> None:
    path = tmp_path / "loops.db"
    write = pickle.loads(pickle.dumps(LoopRecordFile(str(path))))
    before_s = time.time()
    for record in recorded(seconds=3):
        write(
            LoopRecord(**{**{name: getattr(record, name) for name in record.__slots__}, "time": time.monotonic()})
        )
    with sqlite3.connect(path) as file:
        rows = file.execute("SELECT loop, time FROM receipts WHERE axis = 0 ORDER BY id").fetchall()
    assert {loop for loop, _ in rows} == {"lane-0 flow", "lane-1 flow", "lanes balance"}
    assert all(before_s - 1.0 <= when_s <= time.time() + 1.0 for _, when_s in rows)


def test_without_a_path_nothing_is_kept() -> None:
    LoopRecordFile("")(recorded(seconds=3)[0])


def test_a_new_file_has_no_intervals_and_a_locked_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "loops.db"
    assert read_flow(path, lane=0) == []
    sqlite3.connect(path).close()
    assert read_flow(path, lane=0) == []
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        read_flow(path, lane=0, busy_s=0.01)
    other.close()
