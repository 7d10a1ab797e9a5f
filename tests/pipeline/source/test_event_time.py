"""Events whose clock is wrong: dead letters that move nothing, whenever the batch is read."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql.streaming.datasource import ReadMaxRows

from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.source.datasource import LogStreamReader
from flyball.pipeline.source.lane_options import LaneOptions
from flyball.pipeline.split.shares import END, ShareEnd
from tests.pipeline.run.test_inline import publish

COLUMNS = {"columns": "id bigint, event_time double null", "event_time": "event_time"}
YEAR_S = 365 * 86_400.0

Row = dict[str, Any]


def source(url: str, max_ahead_s: float) -> LogStreamReader:
    """As the lanes of a pipeline open it."""
    private = LaneOptions(result_queue="results", max_ahead_s=max_ahead_s).to_json()
    return LogStreamReader({"url": url, "log": "events", **COLUMNS, "_pipeline": private})


def read(reader: LogStreamReader, start: Row, end: Row) -> list[Row]:
    parts = [part for share in reader.partitions(start, end) for part in reader.read(share)]
    return [row for part in parts for row in part.to_pylist()]


def event(id: int, time_s: float | None) -> bytes:
    return json.dumps({"id": id, "event_time": time_s}).encode()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'broker.db'}"


@pytest.mark.parametrize("body", [event(3, None), b"not JSON"], ids=["parsed at once", "parsed one by one"])
def test_an_event_too_far_ahead_is_malformed_and_moves_nothing(url: str, body: bytes) -> None:
    now_s = time.time()
    wrong = {1: now_s + YEAR_S, 2: 1000 * now_s, 5: -1e300}
    right = {0: now_s - 50, 4: now_s + 100}
    bodies = [event(id, {**wrong, **right}[id]) if id in {**wrong, **right} else body for id in range(6)]
    publish(url, bodies)
    reader = source(url, max_ahead_s=600.0)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    rows = read(reader, start, end)
    malformed = {row["_offset"]: row for row in rows if row["_kind"] == "malformed" and row["_body"] != body}
    assert sorted(malformed) == sorted(wrong)
    for id, row in malformed.items():
        assert row["_body"] == bodies[id]
        assert row["_error"].startswith(f"event_time is {wrong[id]!r}, which is no time")
        assert (row["id"], row["event_time"]) == (None, None)
    assert [row["id"] for row in rows if row["_kind"] == "event" and row["id"] != 3] == [0, 4]
    (share,) = [ShareEnd.from_json(row["_body"]) for row in rows if row["_kind"] == END]
    assert share.latest_s == right[4]
    assert share.bodies == 6
    reader.stop()


def test_a_batch_that_is_read_again_much_later_is_judged_as_it_was(url: str) -> None:
    publish(url, [event(0, time.time() + YEAR_S)])
    reader = source(url, max_ahead_s=600.0)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    assert [row["_kind"] for row in read(reader, start, end)] == ["malformed", END]
    a_year_later = {**end, "clock_s": end["clock_s"] + YEAR_S}
    assert [row["_kind"] for row in read(reader, start, a_year_later)] == ["event", END]
    reader.stop()


def test_data_that_lie_in_the_future_can_be_allowed(url: str) -> None:
    publish(url, [event(0, time.time() + YEAR_S), event(1, 1000 * time.time())])
    reader = source(url, max_ahead_s=math.inf)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    assert [row["_kind"] for row in read(reader, start, end)] == ["event", "malformed", END]
    reader.stop()


def test_a_config_without_a_bound_goes_to_the_processes_of_lanes() -> None:
    given = {**COLUMNS, "max_ahead_s": math.inf}
    config = PipelineConfig.model_validate(given)
    again = PipelineConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json"))))
    assert again.max_ahead_s == math.inf
    assert PipelineConfig.model_validate(COLUMNS).max_ahead_s == 600.0


def test_any_time_may_be_allowed() -> None:
    columns = {"columns": "id bigint, at double", "event_time": "at"}
    assert PipelineConfig.model_validate(columns | {"max_ahead_s": math.inf}).max_ahead_s == math.inf
    with pytest.raises(ValidationError, match="max_ahead_s must be at most 1e\\+09 seconds"):
        PipelineConfig.model_validate(columns | {"max_ahead_s": 1e12})
