"""One of the `monitors` of a pipeline's config: a statistic of the incoming events that tier 1 may go by."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flyball.errors import InvalidValue
from flyball.pipeline.columns import Columns
from flyball.pipeline.expressions import Scope, condition
from flyball.pipeline.strict import Strict


class MonitorConfig(Strict):
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
        self.chosen(columns)
        if self.column is None:
            return
        if self.column not in columns.names:
            raise InvalidValue(
                f"column names the column {self.column!r}, which is none of {', '.join(columns.names)}; a monitor "
                "sees events as they come in"
            )
        if columns.types[self.column] not in ("bigint", "double"):
            raise InvalidValue(
                f"column names the column {self.column!r}, which is {columns.types[self.column]}; a quantile "
                "needs a number"
            )

    def chosen(self, columns: Columns) -> str:
        """`where` as Spark SQL."""
        try:
            return condition(self.where, Scope(columns.types))
        except InvalidValue as error:
            raise InvalidValue(f"where: {error}") from None

    @property
    def chooses(self) -> bool:
        return self.where.strip().lower() != "true"


_EXAMPLES = {"column": 'column = "load"', "quantile": "quantile = 0.99"}
