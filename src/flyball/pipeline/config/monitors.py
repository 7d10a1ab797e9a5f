"""One of the `monitors` of a pipeline's config: a statistic of the incoming events that tier 1 may go by."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flyball.pipeline.sql.column_checks import check_column, check_type, checked_condition
from flyball.pipeline.sql.columns import NUMBERS, Columns
from flyball.pipeline.sql.expressions import Scope
from flyball.strict_model import StrictModel


class MonitorConfig(StrictModel):
    """In the steps of tier 1 the statistic is called monitor.NAME. It comes from a random sample of the events
    before any step: what tier 1 filters out counts too, or a threshold would raise itself batch by batch."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", description="used as monitor.NAME in tier 1")]
    kind: Annotated[Literal["quantile", "rate"], Field(description="rate: events per second of event time")] = (
        "quantile"
    )
    column: Annotated[str | None, Field(description="column of the source whose quantile is wanted")] = None
    quantile: Annotated[float | None, Field(gt=0, lt=1, description="0.99: all but the largest 1 %")] = None
    where: Annotated[str, Field(description="SQL condition that chooses the events")] = "true"
    window_s: Annotated[float, Field(gt=0, allow_inf_nan=False, description="event time looked back over")] = 60.0
    initial: Annotated[float, Field(allow_inf_nan=False, description="value until enough events were seen")]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        wants = self.kind == "quantile"
        for key in ("column", "quantile"):
            if wants and getattr(self, key) is None:
                raise ValueError(f"a monitor of kind quantile needs {key}; add it, such as {_EXAMPLES[key]}")
            if not wants and getattr(self, key) is not None:
                raise ValueError(f"a monitor of kind rate counts events and has no {key}; leave it out")
        return self

    def check(self, columns: Columns) -> None:
        """Raise `InvalidValue`, the key first, if the monitor cannot work on the source's columns."""
        self.where_sql(columns)
        if self.column is not None:
            check_column("column", self.column, columns, "a monitor sees events as they come in")
            check_type("column", self.column, columns, NUMBERS, "a quantile needs a number")

    def where_sql(self, columns: Columns) -> str:
        """`where` as Spark SQL."""
        return checked_condition("where", self.where, Scope(columns.types))

    @property
    def has_condition(self) -> bool:
        return self.where.strip().lower() != "true"


_EXAMPLES = {"column": 'column = "load"', "quantile": "quantile = 0.99"}
