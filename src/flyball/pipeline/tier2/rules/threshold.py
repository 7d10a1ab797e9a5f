"""Threshold: an alert for each window (and group) whose aggregate is beyond a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flyball.pipeline.sql.column_checks import check_column, check_type
from flyball.pipeline.sql.columns import NUMBERS, Columns
from flyball.pipeline.tier2.rules.base import Windowed
from flyball.pipeline.tier2.rules.bounds import Bounded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Threshold(Windowed, Bounded):
    kind: Literal["threshold"] = "threshold"
    aggregate: Literal["max", "min", "avg", "sum", "count"] = "max"
    column: str

    def check(self, columns: Columns) -> None:
        super().check(columns)
        if self.aggregate == "count":
            check_column("column", self.column, columns)
        else:
            check_type("column", self.column, columns, NUMBERS, "the rule needs a number")

    def find(self, events: DataFrame, columns: Columns) -> DataFrame:  # noqa: ARG002
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        value = F.expr(f"CAST({self.aggregate}(`{self.column}`) AS DOUBLE)").alias("value")
        judged = events.groupBy(self.window(), *self.group_by).agg(value).where(self.beyond)
        return judged.select(
            F.col("window.start").cast("double").alias("window_start"),
            F.col("window.end").cast("double").alias("window_end"),
            "value",
            *self.group_by,
        )

    def describe(self, row: dict[str, Any]) -> str:
        return f"{self.aggregate} of {self.column} is {row['value']:g}, {self.bound_in_words}"
