"""What a pipeline is made of, as it is written in a TOML file and checked before Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from flyball.pipeline import rules as rule_kinds
from flyball.pipeline import tier1 as steps
from flyball.pipeline.columns import Columns
from flyball.pipeline.config_lanes import LanesConfig
from flyball.pipeline.config_monitor import MonitorConfig
from flyball.pipeline.rules import AnyRule
from flyball.pipeline.rules.threshold import Threshold as Rule
from flyball.pipeline.strict import Strict
from flyball.pipeline.tier1 import AnyStep
from flyball.pipeline.tier1.filter import Filter

__all__ = ["Filter", "PipelineConfig", "Rule"]


class PipelineConfig(Strict):
    """Source log → tier 1 → results log → tier 2 → alert log."""

    columns: Annotated[str, Field(description="Columns of an event: name, type and, if it may be absent, null")]
    event_time: Annotated[str, Field(description="The column with the time of the event, in seconds since 1970")]
    input: str = "events"
    results: str = "results"
    dead_letter: str = "dead-letter"
    alerts: str = "alerts"
    late: Annotated[str, Field(description="Results that came too late to be put in order")] = "late"
    watermark_s: Annotated[float, Field(ge=0, description="How late an event may come and still be counted")] = 5.0
    max_rows: Annotated[int, Field(ge=1, description="Most rows of one micro-batch")] = 200_000
    master: Annotated[str, Field(description="Where Spark runs")] = "local[2]"
    lanes: LanesConfig = LanesConfig()
    monitors: tuple[MonitorConfig, ...] = ()
    tier1: tuple[AnyStep, ...] = ()
    rules: tuple[AnyRule, ...] = ()

    @field_validator("columns")
    @classmethod
    def _columns_parse(cls, text: str) -> str:
        Columns.parse(text)
        return text

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        columns = self.source_columns
        _time(self.event_time, columns, "event_time")
        _unique("monitors", [monitor.name for monitor in self.monitors])
        for monitor in self.monitors:
            _named(f"monitors[{monitor.name}]", monitor.check, columns)
        results = self.result_columns
        _time(self.event_time, results, "after tier1, event_time")
        rule_kinds.check(self.rules, results)
        _unique("rules", [rule.name for rule in self.rules])
        return self

    @property
    def source_columns(self) -> Columns:
        initial = {monitor.name: monitor.initial for monitor in self.monitors}
        return Columns.parse(self.columns).knowing(initial)

    @property
    def result_columns(self) -> Columns:
        """What an event has after tier 1: this is what rules see."""
        return steps.columns_after(self.tier1, self.source_columns).knowing({})

    @property
    def longest_window_s(self) -> float:
        """How far event time has to run on after the last event until every rule has judged everything."""
        return max((rule.reach_s for rule in self.rules), default=0.0)


def _unique(what: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise ValueError(f"two {what} have the same name: {', '.join(names)}; rename one")


def _named(key: str, check: Callable[[Columns], None], columns: Columns) -> None:
    try:
        check(columns)
    except ValueError as error:
        raise type(error)(f"{key}.{error}") from None


def _time(name: str, columns: Columns, key: str) -> None:
    if name not in columns.names:
        raise ValueError(f"{key} names the column {name!r}, which is none of {', '.join(columns.names)}")
    if columns.types[name] != "double":
        raise ValueError(
            f"{key} names the column {name!r}, which is {columns.types[name]}; the time is a double, in seconds"
        )
