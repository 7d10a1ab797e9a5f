"""The configuration of a pipeline: read from a TOML file and checked before Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from flyball.message import check_name
from flyball.pipeline import sinks as sink_kinds
from flyball.pipeline.config.lanes import LanesConfig
from flyball.pipeline.config.monitors import MonitorConfig
from flyball.pipeline.sinks import AnySink
from flyball.pipeline.sql.column_checks import check_type
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier1 import steps
from flyball.pipeline.tier1.steps import AnyStep
from flyball.pipeline.tier1.steps.filter import Filter
from flyball.pipeline.tier2 import rules as rule_kinds
from flyball.pipeline.tier2.rules import AnyRule
from flyball.pipeline.tier2.rules.threshold import Threshold as Rule
from flyball.strict_model import StrictModel

LOGS = {
    "input": "events",
    "results": "results",
    "dead_letter": "dead-letter",
    "alerts": "alerts",
    "late": "late",
}
"""Key → what the log is called by default."""

__all__ = ["Filter", "PipelineConfig", "Rule"]


class PipelineConfig(StrictModel):
    """Source log → tier 1 → results log → tier 2 → alert log."""

    name: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9_-]+$", description="name in the logs that several pipelines share"),
    ] = None
    columns: Annotated[str, Field(description="Columns of an event: name, type and, if it may be absent, null")]
    event_time: Annotated[str, Field(description="The column with the time of the event, in seconds since 1970")]
    input: str = LOGS["input"]
    results: str = LOGS["results"]
    dead_letter: str = LOGS["dead_letter"]
    alerts: str = LOGS["alerts"]
    late: Annotated[str, Field(description="Results that came too late to be put in order")] = LOGS["late"]
    watermark_s: Annotated[float, Field(ge=0, description="How late an event may come and still be counted")] = 5.0
    max_ahead_s: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=True,
            description="An event whose time is farther ahead of the clock is a dead letter; inf: none is",
        ),
    ] = 600.0
    fail_on_data_loss: Annotated[
        bool,
        Field(description="Whether input that was removed before it was read ends the run; if not, it is skipped"),
    ] = True
    max_rows: Annotated[int, Field(ge=1, description="Most rows of one micro-batch")] = 200_000
    master: Annotated[str, Field(description="Where Spark runs")] = "local[2]"
    feeds: Annotated[
        tuple[str, ...], Field(description="Channels of rules that are another pipeline's input")
    ] = ()
    upstream: Annotated[tuple[str, ...], Field(description="Names of the pipelines that write the input")] = ()
    upstream_timeout_s: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="How long to wait for one of them that sends nothing")
    ] = 60.0
    runner: Annotated[
        Literal["inline", "process"] | None,
        Field(
            description="Lanes as shares of one Spark application (inline), or each one of its own (process); by "
            "default inline on a local master, process on a cluster"
        ),
    ] = None
    lanes: LanesConfig = LanesConfig()
    monitors: tuple[MonitorConfig, ...] = ()
    tier1: tuple[AnyStep, ...] = ()
    rules: tuple[AnyRule, ...] = ()
    sinks: tuple[AnySink, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _logs_by_name(cls, data: Any) -> Any:
        """With a name, the logs are called after it: several pipelines then share a broker."""
        if isinstance(data, dict) and isinstance(data.get("name"), str):
            return {**{key: f"{data['name']}.{log}" for key, log in LOGS.items()}, **data}
        return data

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
        sink_kinds.check(self.sinks, self)
        self._check_logs()
        self._check_feeds()
        return self

    def _check_logs(self) -> None:
        """Each log has one kind of content: a rule that wrote into another one would make it unreadable."""
        names = {key: check_name(getattr(self, key)) for key in LOGS}
        for key, name in names.items():
            same = [other for other, its_name in names.items() if its_name == name]
            if same[0] != key:
                raise ValueError(f"{same[0]} and {key} must be different logs, got {name!r} for both")
        for rule in self.rules:
            if rule.to is None or check_name(rule.to) == self.alerts:
                continue
            owner = next((key for key, name in names.items() if name == rule.to), None)
            if owner is None and rule.to.startswith(f"{self.results}."):
                owner = "results"
            if owner is not None:
                raise ValueError(
                    f"rules[{rule.name}].to must be a channel of its own, got {rule.to!r}, which is the "
                    f"pipeline's {owner} log"
                )

    def _check_feeds(self) -> None:
        channels = sorted({rule.to or self.alerts for rule in self.rules})
        for channel in self.feeds:
            if channel not in channels:
                there = ", ".join(channels) or "none, for there are no rules"
                raise ValueError(f"feeds names {channel!r}, to which no rule writes; there are: {there}")
        if self.feeds and self.name is None:
            raise ValueError(
                "feeds needs a name, by which the next pipeline recognises this one; "
                'give this pipeline one, such as name = "lyon"'
            )
        if len(set(self.upstream)) != len(self.upstream):
            raise ValueError(f"upstream names a pipeline twice: {', '.join(self.upstream)}; remove one")

    @property
    def producer_name(self) -> str:
        """Name under which this pipeline appends to shared logs; unique on a broker, as its results log is."""
        return self.name or self.results

    @property
    def chosen_runner(self) -> Literal["inline", "process"]:
        return self.runner or ("inline" if self.master.startswith("local") else "process")

    @property
    def source_columns(self) -> Columns:
        initial = {monitor.name: monitor.initial for monitor in self.monitors}
        return Columns.parse(self.columns).knowing(initial)

    @property
    def result_columns(self) -> Columns:
        """Columns of an event after tier 1: what rules see."""
        return steps.columns_after(self.tier1, self.source_columns).knowing({})

    @property
    def longest_window_s(self) -> float:
        """Event time that must pass after the last event until every rule has evaluated everything."""
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
    check_type(key, name, columns, ("double",), "the time is a double, in seconds")
