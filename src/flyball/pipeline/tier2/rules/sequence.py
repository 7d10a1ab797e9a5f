"""Sequence: an alert for each event that completes a sequence of events (of a group) within some time.

Let w be `within_s`. Windows of 2w start every w, so that an event at time t lies in the second half of exactly one
of them, and that window holds all events from t−w to t. Each window sorts its events and goes through them once.
It keeps, for each step i, the latest start of a chain that has come up to step i; an event of step i extends a
chain of step i−1. The latest start is all that matters: the later a chain starts, the longer it may still last.
Chains that end in the second half are reported, so each exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from flyball.pipeline.sql.column_checks import checked_condition
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.sql.expressions import Scope
from flyball.pipeline.tier2.rules.base import RuleBase, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Sequence(RuleBase):
    kind: Literal["sequence"]
    steps: Annotated[tuple[str, ...], Field(min_length=2, max_length=8, description="SQL conditions, in order")]
    within_s: Annotated[
        float, Field(ge=0.001, allow_inf_nan=False, description="from the first event to the last")
    ]

    @property
    def reach_s(self) -> float:
        return 2 * self.within_s

    @property
    def lag_s(self) -> float:
        return self.within_s  # a chain is found when the window ends in whose second half it ended

    def check(self, columns: Columns) -> None:
        super().check(columns)
        self._conditions(columns)

    def _conditions(self, columns: Columns) -> list[str]:
        return [
            checked_condition(f"steps[number {number}]", text, Scope(columns.types))
            for number, text in enumerate(self.steps, start=1)
        ]

    def find(self, events: DataFrame, columns: Columns) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        conditions = [f"coalesce({text}, false)" for text in self._conditions(columns)]
        # Behind the watermark, and there it has to stay: see `only_events`.
        matching = events.where(f"CASE WHEN _time IS NULL THEN false ELSE {' OR '.join(conditions)} END")
        window = F.window("_time", milliseconds(2 * self.within_s), milliseconds(self.within_s))
        event = f"struct(_time AS t, _partition AS p, _offset AS o, array({', '.join(conditions)}) AS m)"
        gathered = matching.groupBy(window, *self.group_by).agg(
            F.array_sort(F.collect_list(F.expr(event))).alias("events")
        )
        chains = gathered.select("window", *self.group_by, F.expr(f"inline({self._chains()})"))
        middle = F.expr(f"window.start + make_dt_interval(0, 0, 0, {round(self.within_s * 1000) / 1000!r})")
        return chains.where(F.col("last") >= middle).select(
            F.col("first").cast("double").alias("window_start"),
            F.col("last").cast("double").alias("window_end"),
            F.expr("CAST(last AS DOUBLE) - CAST(first AS DOUBLE)").alias("value"),
            *self.group_by,
        )

    def _chains(self) -> str:
        """SQL: the completed chains of `events`, as an array of (first, last)."""
        count = len(self.steps)
        none = "CAST(NULL AS TIMESTAMP)"
        start = f"named_struct('s', array({', '.join([none] * (count - 1))}), "
        start += "'hits', CAST(array() AS array<struct<first: timestamp, last: timestamp>>))"
        reached = ["if(e.m[0], e.t, a.s[0])"]
        reached += [
            f"if(e.m[{i}] AND a.s[{i - 1}] IS NOT NULL, a.s[{i - 1}], a.s[{i}])" for i in range(1, count - 1)
        ]
        before = f"a.s[{count - 2}]"
        micros = round(self.within_s * 1000) * 1000
        hit = f"e.m[{count - 1}] AND unix_micros(e.t) - unix_micros({before}) <= {micros}L"
        added = f"array(named_struct('first', {before}, 'last', e.t))"
        hits = f"if(coalesce({hit}, false), concat(a.hits, {added}), a.hits)"
        return (
            f"aggregate(events, {start}, "
            f"(a, e) -> named_struct('s', array({', '.join(reached)}), 'hits', {hits}), a -> a.hits)"
        )

    def describe(self, row: dict[str, Any]) -> str:
        return f"{len(self.steps)} events in sequence within {row['value']:.3g} s"
