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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError, NoSuchChannel, TooLarge, Unreachable
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.writer import LogSinks, SinkFailed
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


@contextmanager
def at_work(url: str, settings: PipelineConfig, folder: Path) -> Iterator[Sinks]:
    logs = LogSinks(url)
    logs.open()
    sinks = Sinks(url, settings, folder, logs)
    sinks.start()
    try:
        yield sinks
    finally:
        sinks.stop()
        logs.close()


def wait_for_words(caplog: pytest.LogCaptureFixture, words: str, sinks: Sinks) -> None:
    while not any(words in record.getMessage() for record in caplog.records):
        sinks.check()
        time.sleep(0.02)


def test_a_sink_waits_for_a_folder_that_is_away_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A network disk that is unmounted, a disk that is full."""
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    filled = Logs(url)
    folder, lines = tmp_path / "out", tmp_path / "lines.jsonl"
    settings = config(
        [
            {"kind": "parquet", "of": "results", "path": folder, "every_s": 0},
            {"kind": "jsonl", "of": "results", "path": lines},
        ]
    )
    with at_work(url, settings, tmp_path) as sinks:
        folder.rmdir()
        folder.write_text("a file in its place")
        filled.results(result_rows(0, 10))
        wait_for_words(caplog, "the sink parquet-results waits, and tries again and again", sinks)
        while len(lines.read_text().splitlines()) < 10:
            sinks.check()
            time.sleep(0.02)
        filled.results(result_rows(10, 20))
        folder.unlink()
        folder.mkdir()
        sinks.drain()
        assert "the sink parquet-results continues after" in caplog.text
    filled.close()
    assert sorted(row["id"] for row in pq.read_table(folder).to_pylist()) == list(range(20))
    assert len(lines.read_text().splitlines()) == 20


def test_a_sink_that_waits_can_be_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    filled = Logs(url)
    folder = tmp_path / "out"
    with at_work(
        url, config([{"kind": "parquet", "of": "results", "path": folder, "every_s": 0}]), tmp_path
    ) as sinks:
        folder.rmdir()
        folder.write_text("a file in its place")
        filled.results(result_rows(0, 10))
        wait_for_words(caplog, "the sink parquet-results waits", sinks)
    filled.close()


def test_a_sink_that_would_fail_again_stops_with_the_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    filled = Logs(url)
    settings = config([{"kind": "jsonl", "of": "results", "path": tmp_path / "lines"}])
    with at_work(url, settings, tmp_path) as sinks:
        filled.broken_results()
        with pytest.raises(SinkStopped, match="the sink jsonl-results cannot continue"):
            sinks.drain()
    filled.close()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(28, "No space left on device"), True),
        (sqlite3.OperationalError("database is locked"), True),
        (Unreachable("no answer"), True),
        (NoSuchChannel("there is no log"), False),
        (ValueError("no such column"), False),
        (TooLarge("9 MB"), False),
    ],
)
def test_which_failures_of_a_sink_may_pass(error: Exception, passes: bool) -> None:
    assert follower._may_pass(error) is passes
    if isinstance(error, BrokerError):
        failed = SinkFailed("the log did not store all rows")
        failed.__cause__ = error
        assert follower._may_pass(failed) is passes


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"kind": "channel", "channel": "c", "url": "memory://u:hunter2@h/"}, None),
        ({"kind": "webhook", "url": "ftp://u:hunter2@h/"}, None),
        (
            {"kind": "channel", "channel": "c", "url": "kafka://u:hunter2@h:9092"},
            {"kind": "channel", "channel": "c", "url": "kafka://u:hunter2@h:9092", "name": "other"},
        ),
    ],
)
def test_no_password_of_a_sink_is_printed(first: dict[str, Any], second: dict[str, Any] | None) -> None:
    sinks = [{**sink, "of": "alerts"} for sink in (first, second) if sink is not None]
    with pytest.raises(ValueError, match="sinks") as caught:
        config(sinks)
    assert "hunter2" not in str(caught.value)
