"""Rate of change: an alert for each window (and group) in which a column rises or falls too fast.

The rate is the slope of the straight line that fits the events of the window best (least squares), in units of the
column per second: one odd value does not make a trend. It needs two events at different times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flyball.pipeline.sql.column_checks import check_type
from flyball.pipeline.sql.columns import NUMBERS, Columns
from flyball.pipeline.tier2.rules.base import Windowed
from flyball.pipeline.tier2.rules.bounds import Bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Rate(Windowed, Bounded):
    kind: Literal["rate"]
    column: str

    def check(self, columns: Columns) -> None:
        super().check(columns)
        check_type("column", self.column, columns, NUMBERS, "the rule needs a number")

    def find(self, events: DataFrame, columns: Columns) -> DataFrame:  # noqa: ARG002
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        # Seconds since the window's start, for squares of seconds since 1970 would eat up the digits.
        placed = events.withColumn("window", self.window())
        since = "CAST(_time AS DOUBLE) - CAST(window.start AS DOUBLE)"
        value = F.expr(f"regr_slope(CAST(`{self.column}` AS DOUBLE), {since})").alias("value")
        judged = placed.groupBy("window", *self.group_by).agg(value).where(self.beyond)
        return judged.select(
            F.col("window.start").cast("double").alias("window_start"),
            F.col("window.end").cast("double").alias("window_end"),
            "value",
            *self.group_by,
        )

    def describe(self, row: dict[str, Any]) -> str:
        return f"{self.column} changes by {row['value']:g} a second, {self.bound_in_words}"
