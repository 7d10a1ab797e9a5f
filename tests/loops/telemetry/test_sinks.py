"""Every sink keeps the newest, stays within its bound, and counts what it dropped."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball.control.record import LoopRecord
from flyball.control.step import ReasonCode
from flyball.errors import InvalidValue
from flyball.loops.telemetry.memory import MemorySink
from flyball.loops.telemetry.parquet import ParquetSink
from flyball.loops.telemetry.prometheus import PrometheusSink
from flyball.loops.telemetry.recorder import Recorder
from flyball.loops.telemetry.sink import Row, rows
from flyball.loops.telemetry.sqlite import SqliteSink
from flyball.testing.clock import VirtualClock

PARTS = {"p": 0.1, "i": 5.0}
RECORD = LoopRecord(
    "rate", 0.0, 400.0, 390.0, 5.0, 5.1, 5.1, "on", False, 0, 0, PARTS, "why", code=ReasonCode.STARVED
)


def _records(count: int, loop: str = "rate") -> list[LoopRecord]:
    return [replace(RECORD, loop=loop, time=float(k)) for k in range(count)]


def test_rows_of_vectors_have_an_axis() -> None:
    lanes = replace(RECORD, measurement=(1.0, 2.0, 3.0), command=(7.0, 8.0), proposed=None)
    flat = list(rows(lanes))
    assert [(row.axis, row.measurement, row.command, row.proposed) for row in flat] == [
        (0, 1.0, 7.0, None),
        (1, 2.0, 8.0, None),
        (2, 3.0, None, None),
    ]
    assert json.loads(flat[0].parts) == {"p": 0.1, "i": 5.0}


def test_memory_is_a_ring() -> None:
    sink = MemorySink(capacity=10)
    for record in _records(25):
        sink.write([record])
    sink.write(_records(3, "other"))
    assert [record.time for record in sink.records("rate")] == [18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0]
    assert len(sink.records()) == 10
    assert sink.dropped == 18


def test_sqlite_keeps_the_newest_rows_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    sink = SqliteSink(path, max_rows=10)
    sink.write(_records(25))
    assert sink.dropped == 15
    sink.close()
    sink = SqliteSink(path, max_rows=10)
    sink.write([replace(RECORD, time=100.0, measurement=None, frozen=True)])
    sink.close()
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT time, measurement, frozen FROM receipts ORDER BY id").fetchall()
    assert [time for time, _, _ in found] == [*range(16, 25), 100.0]
    assert found[-1] == (100.0, None, 1)


def test_a_file_of_an_earlier_version_is_written_on(tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    before = [name for name in Row._fields if name != "code"]  # as the table was when records had no codes
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE receipts (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(before)})")
        connection.execute("INSERT INTO receipts (loop, time, reason) VALUES ('rate', 1.0, 'old')")
    for time in (2.0, 3.0):
        sink = SqliteSink(path)
        sink.write([replace(RECORD, time=time)])
        sink.close()
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT time, reason, code FROM receipts ORDER BY id").fetchall()
    assert found == [(1.0, "old", None), (2.0, "why", "starved"), (3.0, "why", "starved")]


def test_parquet_rotates(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path, rows_per_file=10, max_files=2)
    for record in _records(45):
        sink.write([record])
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "receipts-000003.parquet",
        "receipts-000004.parquet",
    ]
    sink.flush()
    assert sink.dropped == 30
    table = pq.read_table(tmp_path)
    assert table.column("time").to_pylist() == [float(k) for k in range(30, 45)]
    assert table.column_names == list(Row._fields)
    assert table.column("reason").to_pylist()[0] == "why"
    assert table.column("code").to_pylist()[0] == "starved"


def test_prometheus_text_is_understood_by_prometheus() -> None:
    sink = PrometheusSink()
    odd = 'quote " back \\ line\nend'
    sink.write([*_records(3), replace(RECORD, loop=odd, command=None, missed=2, measurement=float("nan"))])
    families = {family.name: family for family in text_string_to_metric_families(sink.text())}
    measured = {s.labels["loop"]: s.value for s in families["flyball_loop_measurement"].samples}
    assert measured["rate"] == 390.0
    assert measured[odd] != measured[odd]  # NaN
    steps = {s.labels["loop"]: s.value for s in families["flyball_loop_steps"].samples}
    moves = {s.labels["loop"]: s.value for s in families["flyball_loop_moves"].samples}
    missed = {s.labels["loop"]: s.value for s in families["flyball_loop_missed"].samples}
    assert (steps["rate"], moves["rate"], moves[odd], missed[odd]) == (3.0, 3.0, 0.0, 2.0)


def test_prometheus_forgets_the_loop_heard_of_longest_ago() -> None:
    sink = PrometheusSink(max_loops=2)
    for name in ("a", "b", "a", "c"):
        sink.write([replace(RECORD, loop=name)])
    assert 'loop="b"' not in sink.text()
    assert 'flyball_loop_steps_total{loop="a"} 2' in sink.text()
    assert "flyball_loops_forgotten_total 1" in sink.text()


def test_a_slow_sink_loses_the_oldest_and_they_are_counted() -> None:
    clock = VirtualClock()

    class Slow(MemorySink):
        waits_for_disk = True

    sink = Slow()

    async def main() -> Recorder:
        recorder = Recorder([sink], clock, capacity=10)
        for record in _records(25):
            recorder.put([record])  # nobody else gets a turn: the sink cannot keep up
        await recorder.finish()
        return recorder

    recorder = clock.run(main())
    assert recorder.dropped == 15
    assert [record.time for record in sink.records()] == [float(k) for k in range(15, 25)]


def test_a_failing_sink_is_counted() -> None:
    clock = VirtualClock()

    class Failing(MemorySink):
        def write(self, records: Sequence[LoopRecord]) -> None:
            raise OSError(len(records))

    async def main() -> Recorder:
        recorder = Recorder([Failing()], clock)
        recorder.put(_records(3))
        await recorder.finish()
        return recorder

    assert clock.run(main()).failed == 3


@pytest.mark.parametrize("bound", [0, -1])
def test_bounds_are_from_one(bound: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=str(bound)):
        MemorySink(bound)
    with pytest.raises(InvalidValue, match=str(bound)):
        SqliteSink(tmp_path / "x.db", bound)
    with pytest.raises(InvalidValue, match=str(bound)):
        ParquetSink(tmp_path, bound)
    with pytest.raises(InvalidValue, match=str(bound)):
        PrometheusSink(bound)


def test_sinks_may_create_the_same_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait for others that change a new file to its write-ahead log."""
    with ThreadPoolExecutor(4) as threads:
        for number in range(60):
            for sink in threads.map(SqliteSink, [tmp_path / f"{number}.db"] * 4):
                sink.close()
