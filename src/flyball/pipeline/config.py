"""What a pipeline is made of, as it is written in a TOML file and checked before Spark starts."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flyball.pipeline.columns import Columns


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Filter(_Strict):
    """A tier-1 step: events for which the condition is not true are dropped and counted."""

    keep: Annotated[str, Field(description="SQL condition over the columns, such as load > 0.5")]


class Rule(_Strict):
    """A tier-2 rule: an alert for each window whose aggregate is beyond a bound."""

    name: str
    where: Annotated[str, Field(description="SQL condition that chooses the events")] = "true"
    aggregate: Literal["max", "min", "avg", "sum", "count"] = "max"
    column: str
    window_s: Annotated[float, Field(gt=0)] = 10.0
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("a rule needs either above or below")
        return self

    @property
    def beyond(self) -> str:
        """The bound as a SQL condition on the aggregate."""
        return f"value > {self.above!r}" if self.above is not None else f"value < {self.below!r}"

    @property
    def bound_in_words(self) -> str:
        return f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"


class PipelineConfig(_Strict):
    """Source log → tier 1 → results log → tier 2 → alert log."""

    columns: Annotated[str, Field(description="Columns of an event: name, type and, if it may be absent, null")]
    event_time: Annotated[str, Field(description="The column with the time of the event, in seconds since 1970")]
    input: str = "events"
    results: str = "results"
    dead_letter: str = "dead-letter"
    alerts: str = "alerts"
    watermark_s: Annotated[float, Field(ge=0, description="How late an event may come and still be counted")] = 5.0
    max_rows: Annotated[int, Field(ge=1, description="Most rows of one micro-batch")] = 20_000
    master: Annotated[str, Field(description="Where Spark runs")] = "local[2]"
    tier1: tuple[Filter, ...] = ()
    rules: tuple[Rule, ...] = ()

    @field_validator("columns")
    @classmethod
    def _columns_parse(cls, text: str) -> str:
        Columns.parse(text)
        return text

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        names = Columns.parse(self.columns).names
        for key, name in [
            ("event_time", self.event_time),
            *((f"rules.{r.name}.column", r.column) for r in self.rules),
        ]:
            if name not in names:
                raise ValueError(f"{key} names the column {name!r}, which is none of {', '.join(names)}")
        rule_names = [rule.name for rule in self.rules]
        if len(set(rule_names)) != len(rule_names):
            raise ValueError(f"two rules have the same name: {', '.join(rule_names)}")
        return self

    @property
    def longest_window_s(self) -> float:
        return max((rule.window_s for rule in self.rules), default=0.0)
