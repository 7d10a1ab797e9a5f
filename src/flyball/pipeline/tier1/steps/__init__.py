"""Tier 1: what is done to each event on its own. Steps are functions DataFrame → DataFrame, in the order given.

    [[pipeline.tier1]]
    keep = "NOT (kind = 'performance' AND in_subnet(ip, '92.126.10.0/24'))"

The key tells the step: keep (filter), set and reject (cleanse), columns (project), sample, lookup (augment) or
call (a Python function).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from flyball.pipeline.policy.event_time import TimeLimits
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier1.steps.augment import Augment
from flyball.pipeline.tier1.steps.base import TierOneStep
from flyball.pipeline.tier1.steps.call import Call, StepFailed
from flyball.pipeline.tier1.steps.cleanse import Assign, Reject, reject_implausible_times
from flyball.pipeline.tier1.steps.filter import Filter
from flyball.pipeline.tier1.steps.project import Project
from flyball.pipeline.tier1.steps.sample import Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CALENDAR = TimeLimits()

Step: TypeAlias = "Callable[[DataFrame], DataFrame]"

# key in the config → the step it stands for
_TELLING = {
    "keep": "filter",
    "set": "set",
    "reject": "reject",
    "columns": "project",
    "sample": "sample",
    "lookup": "lookup",
    "call": "call",
}


def _infer_kind(data: Any) -> Any:
    if not isinstance(data, dict) or "step" in data:
        return data
    found = [key for key in _TELLING if key in data]
    if len(found) != 1:
        what = f"has both {found[0]} and {found[1]}" if found else f"has none of {', '.join(_TELLING)}"
        raise ValueError(f"a step of tier 1 {what}; give it exactly one of them")
    return {**data, "step": _TELLING[found[0]]}


AnyStep: TypeAlias = Annotated[
    Annotated[Filter | Assign | Reject | Project | Sample | Augment | Call, Field(discriminator="step")],
    BeforeValidator(_infer_kind),
]


def columns_after(steps: Sequence[TierOneStep], columns: Columns) -> Columns:
    """The columns of the results. Raises `InvalidValue`, the key first, at the first step that cannot work."""
    for number, step in enumerate(steps, start=1):
        try:
            columns = step.output(columns)
        except ValueError as error:
            raise type(error)(f"tier1[number {number}].{error}") from None
    return columns


def rehearse(steps: Sequence[TierOneStep], columns: Columns, spark: SparkSession) -> None:
    """Try the Python steps on rows that are no events, before any event is read."""
    for number, step in enumerate(steps, start=1):
        if isinstance(step, Call):
            try:
                step.rehearse(spark, columns)
            except StepFailed as error:
                raise StepFailed(f"tier1[number {number}].call: {error}") from None
        columns = step.output(columns)


def function(
    steps: Sequence[TierOneStep], columns: Columns, event_time: str, limits: TimeLimits = _CALENDAR
) -> Step:
    """All steps as one function; `columns` are those of the source.

    An event that has no plausible time after them is malformed: the combiner could not put it in order.
    """
    checked = may_change_time(steps, columns, event_time)

    def apply(rows: DataFrame) -> DataFrame:
        before = columns
        for step in steps:
            rows = step.apply(rows, before)
            before = step.output(before)
        return reject_implausible_times(rows, before, event_time, limits) if checked else rows

    return apply


def may_change_time(steps: Sequence[TierOneStep], columns: Columns, event_time: str) -> bool:
    """Whether the time of a result may be another one than the source has checked, or none."""
    after = columns_after(steps, columns)
    required = any(item.name == event_time and item.required for item in after.items)
    return not required or any(isinstance(step, Call) for step in steps)
