"""Project: keep some columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flyball.pipeline.sql.column_checks import check_column
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier1.steps.base import OWN, TierOneStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Project(TierOneStep):
    """Only these columns go on."""

    step: Literal["project"] = "project"
    columns: Annotated[tuple[str, ...], Field(min_length=1, description="names of the columns that are kept")]

    def output(self, columns: Columns) -> Columns:
        for name in self.columns:
            check_column("columns", name, columns)
        return columns.only(self.columns)

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        return rows.select(*self.output(columns).names, *OWN)
