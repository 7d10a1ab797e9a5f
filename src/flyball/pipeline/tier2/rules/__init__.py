"""Tier 2: rules over many events, in Spark SQL on event time.

threshold  an aggregate over a window is beyond a bound
rate       a column rises or falls too fast over a window
absence    a group that was seen falls silent
sequence   events follow each other within some time
summary    not an alert but a higher-level event for each window

A window is judged when the watermark has passed its end. Alerts of one rule come in the order of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Sequence_
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import Column, Columns
from flyball.pipeline.tier2.rules import gate
from flyball.pipeline.tier2.rules.absence import Absence
from flyball.pipeline.tier2.rules.base import RuleBase, clock, only_events, with_event_time
from flyball.pipeline.tier2.rules.gate import GateState
from flyball.pipeline.tier2.rules.rate import Rate
from flyball.pipeline.tier2.rules.sequence import Sequence
from flyball.pipeline.tier2.rules.summary import Summary
from flyball.pipeline.tier2.rules.threshold import Threshold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_ALWAYS = (
    "rule string, event_time double, window_start double, window_end double, value double null, "
    "held_off bigint null, text string"
)


def _infer_kind(data: Any) -> Any:
    return {"kind": "threshold", **data} if isinstance(data, dict) else data


AnyRule: TypeAlias = Annotated[
    Annotated[Threshold | Rate | Absence | Sequence | Summary, Field(discriminator="kind")],
    BeforeValidator(_infer_kind),
]


def check(rules: Sequence_[RuleBase], columns: Columns) -> None:
    """Raise `InvalidValue`, the key first, at the first rule that cannot work on the results' columns."""
    for rule in rules:
        try:
            rule.check(columns)
        except ValueError as error:
            raise type(error)(f"rules[{rule.name}].{error}") from None


def columns_of(rules: Sequence_[RuleBase], columns: Columns) -> Columns:
    """The fields of what these rules write to one channel; `columns` are those of the results."""
    fields: dict[str, Column] = {item.name: item for item in Columns.parse(_ALWAYS).items}
    for rule in rules:
        for item in rule.fields(columns).items:
            before = fields.setdefault(item.name, item)
            if before.sql_type != item.sql_type:
                raise InvalidValue(
                    f"{item.name} is {before.sql_type} in one rule and {item.sql_type} in {rule.name}, and both "
                    "go to the same channel; rename it in one of them"
                )
    return Columns(tuple(fields.values()))


def alerts(
    rows: DataFrame, rule: RuleBase, columns: Columns, event_time: str, watermark_s: float, marks_ahead_s: float
) -> DataFrame:
    """What the rule finds in the results; `columns` are theirs.

    `marks_ahead_s`: how far the mark at the end of the input runs ahead of the last event, so that all rules close
    their windows. A rule that needs less than that takes the rest off.
    """
    behind = with_event_time(rows, event_time, watermark_s, marks_ahead_s - rule.reach_s)
    return rule.find(only_events(behind, rule.where_sql(columns)), columns)


def messages(
    rule: RuleBase, rows: Sequence_[dict[str, Any]], batch: int, before: GateState
) -> tuple[list[dict[str, Any]], GateState]:
    """The alerts of a batch as they are written, in the order of time, and the state after them."""
    ordered = sorted(
        ({**row, "group": rule.group_of(row)} for row in rows),
        key=lambda row: (row["window_end"], row["window_start"], str(row["group"])),
    )
    after = GateState(batch, before.groups)
    if rule.gated:
        after, ordered = gate.judge(
            before, batch, ordered, dedup=rule.dedup, hold_off_s=rule.hold_off_s, longest_s=rule.reach_s
        )
    return [_body(rule, row) for row in ordered], after


def _body(rule: RuleBase, row: dict[str, Any]) -> dict[str, Any]:
    group = row["group"]
    whose = "".join(f", {name} {value}" for name, value in group.items())
    added = {name: row[name] for name in getattr(rule, "aggregates", ())}
    held_off = {"held_off": row["held_off"]} if "held_off" in row else {}
    return {
        "rule": rule.name,
        "event_time": row["window_end"],
        "window_start": row["window_start"],
        "window_end": row["window_end"],
        **({} if row["value"] is None else {"value": _in_json(row["value"])}),
        **{name: _in_json(value) for name, value in group.items()},
        **{name: _in_json(value) for name, value in added.items()},
        **held_off,
        "text": f"{clock(row['window_start'])}–{clock(row['window_end'])}{whose}: {rule.describe(row)}",
    }


def _in_json(value: Any) -> Any:
    """JSON has no infinity: a sum that overflows is null in the alert, and its text says what it was."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
