"""Events with implausible times become malformed rows where they leave the source, before their time counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flyball.pipeline.policy.event_time import TimeLimits
from flyball.pipeline.sql.columns import EVENT, MALFORMED

if TYPE_CHECKING:
    import pyarrow as pa


def reject_times(
    rows: pa.RecordBatch, bodies: Sequence[bytes], event_time: str, limits: TimeLimits
) -> pa.RecordBatch:
    """The rows, those with implausible times as malformed ones; `bodies` are what they were parsed from.

    A null time is left alone: tier 1 may compute it from other columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    times = rows.column(event_time)
    extremes = pc.min_max(times)
    least_s, greatest_s = extremes["min"].as_py(), extremes["max"].as_py()
    if least_s is None or (limits.first_s <= least_s and greatest_s <= limits.last_s):
        return rows
    plausible = pc.and_(pc.greater_equal(times, limits.first_s), pc.less_equal(times, limits.last_s))
    bad = pc.and_(pc.equal(rows.column("_kind"), EVENT), pc.invert(pc.fill_null(plausible, True)))
    reasons = [
        limits.complaint(event_time, time_s) if is_bad else None
        for time_s, is_bad in zip(times.to_pylist(), bad.to_pylist(), strict=True)
    ]
    originals = [body if is_bad else None for body, is_bad in zip(bodies, bad.to_pylist(), strict=True)]
    changed = {
        "_kind": pa.scalar(MALFORMED),
        "_partition": rows.column("_partition"),
        "_offset": rows.column("_offset"),
        "_error": pa.array(reasons, pa.string()),
        "_body": pa.array(originals, pa.binary()),
    }
    columns = [
        pc.if_else(bad, changed.get(field.name, pa.scalar(None, field.type)), rows.column(field.name))
        for field in rows.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
