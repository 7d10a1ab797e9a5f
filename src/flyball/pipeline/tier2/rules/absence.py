"""Absence: an alert when a group that has been seen is silent for some time.

A session of a group lasts as long as its events are less than `for_s` apart. When the watermark has passed the
end of a session, nothing came for `for_s` after its last event: that is the alert, one for each silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier2.rules.base import RuleBase, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Absence(RuleBase):
    kind: Literal["absence"]
    for_s: Annotated[float, Field(ge=0.001, allow_inf_nan=False, description="silence that is too long")]

    @property
    def reach_s(self) -> float:
        return 0.0  # the end of the input is no silence

    def find(self, events: DataFrame, columns: Columns) -> DataFrame:  # noqa: ARG002
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        # Spark wants a further column beside the session: this one is the same for all events.
        keyed = events.withColumn("_all", F.expr("substring(_kind, 1, 0)"))
        session = F.session_window("_time", milliseconds(self.for_s)).alias("session")
        judged = keyed.groupBy(session, "_all", *self.group_by).agg(
            F.max("_time").cast("double").alias("window_start")
        )
        return judged.select(
            "window_start",
            F.col("session.end").cast("double").alias("window_end"),
            F.lit(self.for_s).cast("double").alias("value"),
            *self.group_by,
        )

    def describe(self, row: dict[str, Any]) -> str:  # noqa: ARG002
        return f"nothing for {self.for_s:g} s"
