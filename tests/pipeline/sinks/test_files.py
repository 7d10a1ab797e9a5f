"""Parquet, JSON lines, SQLite and channels: everything once, in order, after any number of kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks import Sinks, follower
from flyball.pipeline.sinks.follower import SinkStopped
from tests.pipeline.sinks.logs import Logs, alert, config, result_rows, write


def all_kinds(folder: Path) -> PipelineConfig:
    return config(
        [
            {"kind": "parquet", "of": "results", "path": folder / "results", "every_s": 0},
            {"kind": "parquet", "of": "alerts", "path": folder / "alerts"},
            {"kind": "jsonl", "of": "results", "path": folder / "results.jsonl"},
            {"kind": "jsonl", "of": "alerts", "path": folder / "alerts.jsonl"},
            {"kind": "sqlite", "of": "results", "path": folder / "found.db"},
            {"kind": "sqlite", "of": "alerts", "path": folder / "found.db", "table": "warnings"},
            {"kind": "channel", "of": "results", "channel": "copy"},
            {"kind": "channel", "of": "alerts", "channel": "cities", "url": f"sqlite:///{folder / 'other.db'}"},
        ]
    )


def parquet(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path: Path, name: str) -> list[dict[str, Any]]:
    file = sqlite3.connect(path)
    file.row_factory = sqlite3.Row
    return [dict(row) for row in file.execute(f"SELECT * FROM {name} ORDER BY rowid")]


def channel(path: Path, name: str) -> list[dict[str, Any]]:
    with open_log_reader(f"sqlite:///{path}", name) as reader:
        return [json.loads(body) for chunk in reader.read_bodies(0, *reader.bounds(0)) for body in chunk.bodies]


def check_all(folder: Path, results: list[dict[str, Any]], alerts: list[dict[str, Any]]) -> None:
    assert parquet(folder / "results") == results
    assert lines(folder / "results.jsonl") == results
    assert table(folder / "found.db", "results") == results
    assert channel(folder / "broker.db", "copy") == results
    typed = [{**one, "held_off": None} for one in alerts]
    assert parquet(folder / "alerts") == typed
    assert lines(folder / "alerts.jsonl") == alerts
    assert table(folder / "found.db", "warnings") == typed
    assert channel(folder / "other.db", "cities") == alerts


def test_all_sinks_hold_what_the_logs_hold_also_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    settings = all_kinds(tmp_path)
    logs = Logs(url)
    logs.results(result_rows(0, 40))
    logs.alerts(0, 5)
    write(url, settings, tmp_path)
    check_all(tmp_path, result_rows(0, 40), [alert(number) for number in range(5)])
    logs.results(result_rows(40, 60))
    logs.results([])
    logs.results(result_rows(60, 90))
    logs.alerts(5, 8)
    logs.close()
    write(url, settings, tmp_path)
    write(url, settings, tmp_path)  # with nothing new
    check_all(tmp_path, result_rows(0, 90), [alert(number) for number in range(8)])


RUN = """
import sys
from pathlib import Path
from flyball.pipeline.sinks import follower
from tests.pipeline.sinks.logs import write
from tests.pipeline.sinks.test_files import all_kinds
if __name__ == "__main__":
    follower._MOST_BYTES = 1  # a write for each batch of the log
    folder = Path(sys.argv[1])
    write(f"sqlite:///{folder / 'broker.db'}", all_kinds(folder), folder)
"""


def test_kill_9_at_random_points_writes_everything_once(tmp_path: Path) -> None:
    seed = 41
    rng = random.Random(seed)
    logs = Logs(f"sqlite:///{tmp_path / 'broker.db'}")
    batches = 150
    for number in range(batches):
        logs.results(result_rows(number * 10, number * 10 + 10))
        logs.alerts(number, number + 1)
    logs.close()
    root = Path(__file__).parents[3]
    killed = 0
    for _ in range(40):  # bounded; each round gets further
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
            stderr=subprocess.PIPE,
        )
        goal = progress(tmp_path) + rng.randint(15, 45)
        while process.poll() is None and progress(tmp_path) < goal:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        error = process.communicate()[1]
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, error
        killed += 1
    assert killed >= 3, f"seed {seed}"
    check_all(tmp_path, result_rows(0, batches * 10), [alert(number) for number in range(batches)])


def progress(folder: Path) -> int:
    return len(list((folder / "results").glob("part-*"))) if (folder / "results").exists() else 0


def test_a_half_written_file_and_a_torn_line_are_written_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    logs = Logs(url)
    logs.results(result_rows(0, 10))
    logs.close()
    settings = all_kinds(tmp_path)
    write(url, settings, tmp_path)
    (tmp_path / "results" / ".part-0000-000000000001-000000000002.parquet").write_bytes(b"PAR1")
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b'{"id": 10, "ho')
    write(url, settings, tmp_path)
    check_all(tmp_path, result_rows(0, 10), [])


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    logs = Logs(url)
    logs.results(result_rows(0, 10))
    logs.close()
    precious = tmp_path / "precious.jsonl"
    precious.write_text("mine\n")
    with pytest.raises(SinkStopped, match="has 5 bytes that no sink wrote: move it away, or name another path"):
        write(url, config([{"kind": "jsonl", "of": "results", "path": precious}]), tmp_path)
    assert precious.read_text() == "mine\n"
    settings = config([{"kind": "jsonl", "of": "results", "path": tmp_path / "out.jsonl"}])
    write(url, settings, tmp_path)
    (tmp_path / "out.jsonl").write_text("cut")
    with pytest.raises(SinkStopped, match=r"has 3 bytes, but .* were written: restore it"):
        write(url, settings, tmp_path)
    table_there = sqlite3.connect(tmp_path / "other.db")
    table_there.execute("CREATE TABLE results (city TEXT)")
    table_there.commit()
    with pytest.raises(SinkStopped, match="has no column 'id': use another table"):
        write(url, config([{"kind": "sqlite", "of": "results", "path": tmp_path / "other.db"}]), tmp_path)


def test_a_target_that_fails_for_good_stops_its_sink_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_TRIES", 3)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    filled = Logs(url)
    folder = tmp_path / "out"
    settings = config([{"kind": "parquet", "of": "results", "path": folder, "every_s": 0}])
    logs = LogSinks(url)
    logs.open()
    sinks = Sinks(url, settings, tmp_path, logs)
    sinks.start()
    folder.rmdir()
    folder.write_text("a file in its place")
    filled.results(result_rows(0, 10))
    filled.close()
    with pytest.raises(SinkStopped, match=r"the sink parquet-results cannot continue: .*Not a directory"):
        sinks.drain()
    sinks.stop()
    logs.close()


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ({"kind": "parquet", "of": "alert", "path": "x"}, "of = 'alert': the pipeline has no such log to write"),
        (
            {"kind": "jsonl", "of": "results", "path": "folder"},
            r"sinks\[number 1\].path = .* is a folder; name a fi",
        ),
        ({"kind": "parquet", "of": "results", "path": "file"}, "is a file; name a folder"),
        ({"kind": "sqlite", "of": "results", "path": "file"}, "is not a SQLite file; name another path"),
        ({"kind": "jsonl", "of": "results", "path": "file/below"}, "is not a folder; name another folder"),
        ({"kind": "jsonl", "of": "results", "path": "/proc/1/x"}, "may not be written; name another folder"),
        (
            {"kind": "webhook", "of": "alerts", "url": "localhost:80"},
            "is not a web address; write one such as http://",
        ),
        ({"kind": "webhook", "of": "alerts", "url": "http://[x"}, "is not a web address"),
        ({"kind": "webhook", "of": "alerts", "url": "http://a", "tries": 0}, "greater than or equal to 1"),
        ({"kind": "webhook", "of": "alerts", "url": "http://a", "headers": {"a b": "c"}}, "'a b' is not a header"),
        ({"kind": "channel", "of": "alerts", "channel": "alerts"}, "is what it reads; name another channel"),
        (
            {"kind": "channel", "of": "alerts", "channel": "c", "url": "memory://"},
            "has no logs; use one of sqlite",
        ),
        ({"kind": "s3", "of": "alerts"}, "'parquet', 'jsonl', 'sqlite', 'channel', 'webhook'"),
    ],
)
def test_a_sink_that_cannot_work_is_refused(
    tmp_path: Path, sink: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sink.get("path") == "/proc/1/x" and os.access("/proc/1", os.W_OK):
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("not a database")
    named = {**sink, "path": tmp_path / sink["path"]} if "path" in sink else sink
    with pytest.raises(ValueError, match=message):
        config([named])


def test_two_sinks_do_not_write_to_one_place(tmp_path: Path) -> None:
    one = {"kind": "jsonl", "of": "results", "path": tmp_path / "x"}
    with pytest.raises(ValueError, match="have the same target"):
        config([one, {**one, "name": "b"}])
    with pytest.raises(ValueError, match="have the same name, 'jsonl-results'; give one of them another"):
        config([one, {**one, "path": tmp_path / "y"}])
    with pytest.raises(ValueError, match="give this pipeline one, such as name = "):
        config([{"kind": "channel", "of": "results", "channel": "c"}], name=None)
