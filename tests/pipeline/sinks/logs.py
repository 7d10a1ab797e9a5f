"""Logs as a pipeline writes them, without a pipeline: what sinks are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks import Sinks

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("host", pa.string()),
        ("event_time", pa.float64()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)


def config(sinks: list[dict[str, Any]], **change: Any) -> PipelineConfig:
    document = {
        "name": "lyon",
        "columns": "id bigint, host string null, event_time double",
        "event_time": "event_time",
        "rules": [{"name": "many", "aggregate": "count", "column": "id", "above": 3, "group_by": ["host"]}],
        "sinks": sinks,
        **change,
    }
    return TypeAdapter(PipelineConfig).validate_python(document)


def result_rows(first: int, stop: int) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "host": None if number % 7 == 0 else f"h{number % 3}",
            "event_time": number / 10,
            "_partition": 0,
            "_offset": number,
        }
        for number in range(first, stop)
    ]


def alert(number: int) -> dict[str, Any]:
    document = {"rule": "many", "event_time": number + 10.0, "window_start": float(number)}
    return document | {"window_end": number + 10.0, "value": 4.0, "host": f"h{number}", "text": "it's “much”"}


class Logs:
    """Fills the logs of a broker as combiner and rules do."""

    def __init__(self, url: str) -> None:
        self._sinks = LogSinks(url)
        self._sinks.open()
        for log in ("results", "alerts", "late", "dead-letter"):
            self._sinks.add(f"lyon.{log}", "test")
        self._batch = 0

    def results(self, rows: list[dict[str, Any]]) -> None:
        header = {"number": self._batch, "late": 0, "mark_s": None}
        self._send("lyon.results", [entry.encode(header, pa.Table.from_pylist(rows, schema=SCHEMA))])

    def broken_results(self) -> None:
        """What no combiner writes."""
        self._send("lyon.results", [b"\0rows nothing"])

    def alerts(self, first: int, stop: int) -> None:
        self._send("lyon.alerts", [json.dumps(alert(number)).encode() for number in range(first, stop)])

    def _send(self, log: str, bodies: list[bytes]) -> None:
        self._sinks.append(log, "test", self._batch, bodies)
        self._batch += 1

    def close(self) -> None:
        self._sinks.close()


def write(url: str, settings: PipelineConfig, folder: Path) -> None:
    """Run the sinks until they have written everything."""
    logs = LogSinks(url)
    logs.open()
    sinks = Sinks(url, settings, folder, logs)
    sinks.start()
    try:
        sinks.drain()
    finally:
        sinks.stop()
        logs.close()
