"""Summary: a higher-level event for each window (and group), with aggregates of its events.

It is not an alert but what the next level up reads: the busiest host of a city, then of a state, then a country.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import Column, Columns
from flyball.pipeline.sql.expressions import Scope, Typed, aggregate
from flyball.pipeline.tier2.rules.base import OF_AN_ALERT, Windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Summary(Windowed):
    kind: Literal["summary"]
    aggregates: Annotated[
        dict[str, str], Field(min_length=1, description="field = aggregate, such as load_max = 'max(load)'")
    ]
    to: Annotated[str, Field(description="channel for the higher-level events")]

    def check(self, columns: Columns) -> None:
        super().check(columns)
        if self.gated:
            raise InvalidValue("dedup and hold_off_s are for alerts; a summary gives every window: leave them out")
        self._compiled(columns)

    def _compiled(self, columns: Columns) -> dict[str, Typed]:
        compiled = {}
        for name, text in self.aggregates.items():
            if not name.isidentifier() or name in OF_AN_ALERT or name in self.group_by:
                raise InvalidValue(f"aggregates: {name!r} cannot name a field here; choose another name")
            try:
                compiled[name] = aggregate(text, Scope(columns.types))
            except InvalidValue as error:
                raise InvalidValue(f"aggregates.{name}: {error}") from None
        return compiled

    def fields(self, columns: Columns) -> Columns:
        kinds = {name: found.type for name, found in self._compiled(columns).items()}
        added = [
            Column(name, "string" if kind == "null" else kind, required=False) for name, kind in kinds.items()
        ]
        return super().fields(columns).plus(*added)

    def find(self, events: DataFrame, columns: Columns) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        values = [F.expr(found.sql).alias(name) for name, found in self._compiled(columns).items()]
        gathered = events.groupBy(self.window(), *self.group_by).agg(*values)
        return gathered.select(
            F.col("window.start").cast("double").alias("window_start"),
            F.col("window.end").cast("double").alias("window_end"),
            F.lit(None).cast("double").alias("value"),
            *self.group_by,
            *self.aggregates,
        )

    def describe(self, row: dict[str, Any]) -> str:
        return ", ".join(f"{name} {row[name]}" for name in self.aggregates)
