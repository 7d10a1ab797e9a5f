"""Records of the lanes' loops, in the form of the loops' telemetry.

The loops live in the process that plans a source's batches, so their records go to a file: a table `receipts` as
`loops.telemetry.sqlite` keeps it, bounded, for all lanes of a host together.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from flyball.control.record import LoopRecord
from flyball.control.step import ReasonCode, Value
from flyball.control.wrappers.common import saturation_code
from flyball.loops.telemetry.sqlite import SqliteSink
from flyball.pipeline.policy import FlowControl, FlowState
from flyball.steady_clock import SteadyClock


def flow_record(
    lane: int, flow: FlowControl, now_s: float, free: float, before: FlowState, after: FlowState
) -> LoopRecord:
    """The record of one interval of flow control: free space, bytes admitted in it, budget of the next.

    Free space and the admitted results are in bytes. The queue ever took `appended_bytes`: with it the free space
    is known as it would be if nothing had been taken out, which is what identification needs.
    """
    late_s = now_s - before.since_s - flow.interval_s
    return _record(
        f"lane-{lane} flow",
        now_s,
        float(flow.reference_bytes),
        free,
        before.granted_bytes,
        after.budget_bytes,
        saturated=int(after.budget_bytes >= flow.limit_bytes) - int(after.budget_bytes <= 0.0),
        missed=int(late_s // flow.interval_s),
        parts={"appended_bytes": float(after.result_bytes)},
        reason=f"{before.event_bytes:.0f} bytes of results an event" if before.event_bytes else "",
    )


def balance_record(now_s: float, delays_s: Sequence[float], before: Value, after: Value) -> LoopRecord:
    """The lanes' shares; what is measured are their delays in seconds, which are to become equal."""
    mean_s = sum(delays_s) / len(delays_s)
    return _record("lanes balance", now_s, (mean_s,) * len(delays_s), tuple(delays_s), before, after)


def restart_record(query: str, now_s: float, restarts: int, reason: str) -> LoopRecord:
    """A query failed in a way that passes, and is started again, for that many times now; there should be none."""
    return LoopRecord(
        f"query {query}",
        now_s,
        setpoint=None,
        measurement=float(restarts),
        reason=reason,
        alert=f"the query {query} is started again",
        code=ReasonCode.RESTARTED,
    )


def _record(
    loop: str,
    now_s: float,
    setpoint: Value,
    measurement: Value,
    applied: Value,
    command: Value,
    *,
    saturated: int = 0,
    missed: int = 0,
    parts: Mapping[str, float] = MappingProxyType({}),
    reason: str = "",
) -> LoopRecord:
    return LoopRecord(
        loop=loop,
        time=now_s,
        setpoint=setpoint,
        measurement=measurement,
        applied=applied,
        proposed=command,
        command=command,
        mode="on",
        saturated=saturated,
        missed=missed,
        parts=parts,
        reason=reason,
        code=saturation_code(saturated) if saturated else ReasonCode.UNSPECIFIED,
    )


class LoopRecordFile:
    """Opens the file when the first record comes: the object is pickled before that. No path: nothing is kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sink: SqliteSink | None = None
        self._clock: SteadyClock | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_sink": None, "_clock": None}

    def __call__(self, record: LoopRecord) -> None:
        """`record.time` is of the monotonic clock, as everything in planning; the file has dates."""
        if not self._path:
            return
        if self._sink is None or self._clock is None:
            self._sink, self._clock = SqliteSink(self._path), SteadyClock()
        self._sink.write([replace(record, time=self._clock.at(record.time))])


def read_flow(path: Path, lane: int, *, busy_s: float = 5.0) -> list[tuple[float, float, float, float, float]]:
    """Of each interval of a lane's flow control so far, oldest first: (time, free space to hold, free space, bytes
    admitted, bytes ever written to the queue). A file that is locked for longer than `busy_s` is an error."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=busy_s)) as file:
        if file.execute("SELECT 1 FROM sqlite_master WHERE name = 'receipts'").fetchone() is None:
            return []  # the file has just been made
        rows = file.execute(
            "SELECT time, setpoint, measurement, applied, parts FROM receipts WHERE loop = ? ORDER BY id",
            (f"lane-{lane} flow",),
        ).fetchall()
    return [(*row[:4], json.loads(row[4])["appended_bytes"]) for row in rows]
