"""Tier 2: rules over many events, in Spark SQL on event time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from flyball.pipeline.columns import EVENT
from flyball.pipeline.config import Rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def alerts(rows: DataFrame, rule: Rule, event_time: str, watermark_s: float) -> DataFrame:
    """One row for each window in which the rule's aggregate is beyond its bound.

    A window is judged when the watermark has passed its end. Marks move the watermark like events do and are
    left out only after that.
    """
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    timed = rows.withColumn("_time", F.timestamp_seconds(F.col(event_time)))
    timed = timed.withWatermark("_time", f"{round(watermark_s * 1000)} milliseconds")
    # Spark moves conditions in front of the watermark, which then would not see the marks. It leaves one alone
    # that looks at the time column, so the choice is wrapped into such a condition.
    chosen = timed.where(f"CASE WHEN _time IS NULL THEN false ELSE _kind = '{EVENT}' AND ({rule.where}) END")
    windows = chosen.groupBy(F.window("_time", f"{round(rule.window_s * 1000)} milliseconds"))
    judged = windows.agg(F.expr(f"{rule.aggregate}({rule.column})").alias("value")).where(rule.beyond)
    return judged.select(
        F.col("window.start").cast("double").alias("window_start"),
        F.col("window.end").cast("double").alias("window_end"),
        F.col("value").cast("double").alias("value"),
    )


def alert_body(rule: Rule, row: dict[str, Any]) -> dict[str, Any]:
    """What an alert says, as it is written to the alert log."""
    return {
        "rule": rule.name,
        "window_start": row["window_start"],
        "window_end": row["window_end"],
        "value": row["value"],
        "text": (
            f"{_clock(row['window_start'])}–{_clock(row['window_end'])}: {rule.aggregate} of {rule.column} "
            f"is {row['value']:g}, {rule.bound_in_words}"
        ),
    }


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")
