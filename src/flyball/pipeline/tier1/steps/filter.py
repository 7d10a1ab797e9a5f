"""Keep some events; the others are counted as filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flyball.pipeline.sql.column_checks import checked_condition
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier1.steps.base import TierOneStep, is_event, scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Filter(TierOneStep):
    """Events for which the condition is not true are dropped and counted."""

    step: Literal["filter"] = "filter"
    keep: Annotated[str, Field(description="SQL condition over the columns, such as load > 0.5")]

    def output(self, columns: Columns) -> Columns:
        checked_condition("keep", self.keep, scope(columns))
        return columns

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        return rows.where(f"NOT {is_event()} OR {checked_condition('keep', self.keep, scope(columns))}")
