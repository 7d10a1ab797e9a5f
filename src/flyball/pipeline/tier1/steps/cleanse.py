"""Cleanse: compute columns anew, and send events that make no sense to the dead-letter log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flyball.errors import InvalidValue
from flyball.pipeline.policy.event_time import TimeLimits
from flyball.pipeline.sql.column_checks import checked_condition, checked_value
from flyball.pipeline.sql.columns import MALFORMED, Column, Columns
from flyball.pipeline.tier1.steps.base import OWN, TierOneStep, is_event, scope

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame


class Assign(TierOneStep):
    """Columns get new values; a name that is not a column yet becomes one. All see the values before the step."""

    step: Literal["set"] = "set"
    set: Annotated[
        dict[str, str], Field(min_length=1, description="column = SQL value, such as host = 'lower(host)'")
    ]

    def output(self, columns: Columns) -> Columns:
        added = []
        for name, text in self.set.items():
            kind = checked_value(f"set.{name}", text, scope(columns)).type
            if kind == "null":
                raise InvalidValue(f"set.{name}: {text!r} is always null; cast it to a type")
            added += [Column(item.name, kind, required=False) for item in Columns.parse(f"{name} {kind}").items]
        return columns.plus(*added)

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        after = self.output(columns)
        texts = []
        for item in after.items:
            if item.name not in self.set:
                texts.append(f"`{item.name}`")
                continue
            found = checked_value(item.name, self.set[item.name], scope(columns))
            kept = f"`{item.name}`" if columns.types.get(item.name) == item.sql_type else "NULL"
            texts.append(
                f"CASE WHEN {is_event()} THEN CAST({found.sql} AS {item.sql_type}) "
                f"ELSE CAST({kept} AS {item.sql_type}) END AS `{item.name}`"
            )
        return rows.selectExpr(*texts, *OWN)


class Reject(TierOneStep):
    """Events for which the condition is true go to the dead-letter log, with the reason."""

    step: Literal["reject"] = "reject"
    reject: Annotated[str, Field(description="SQL condition, such as load < 0")]
    reason: Annotated[str, Field(min_length=1, description="what the dead-letter log says")] = "rejected"

    def output(self, columns: Columns) -> Columns:
        checked_condition("reject", self.reject, scope(columns))
        return columns

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        condition = checked_condition("reject", self.reject, scope(columns))
        return reject_rows(rows, columns, f"coalesce({is_event()} AND {condition}, false)", F.lit(self.reason))


def reject_implausible_times(rows: DataFrame, columns: Columns, event_time: str, limits: TimeLimits) -> DataFrame:
    """Events whose time is null or beyond the limits go to the dead-letter log."""
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    time = f"`{event_time}`"
    plausible = f"coalesce({time} BETWEEN {limits.first_s!r}D AND {limits.last_s!r}D, false)"
    reason = F.when(F.col(event_time).isNull(), F.lit(limits.complaint(event_time, None))).otherwise(
        F.concat(F.lit(f"{event_time} is "), F.col(event_time).cast("string"), F.lit(f", {limits.explanation}"))
    )
    return reject_rows(rows, columns, f"{is_event()} AND NOT {plausible}", reason)


def reject_rows(rows: DataFrame, columns: Columns, condition: str, reason: SparkColumn) -> DataFrame:
    """Turn the rows for which the condition is true into malformed ones, with the reason and what they were."""
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    fields = ", ".join(f"`{name}`" for name in columns.names)
    judged = rows.withColumn("_rejected", F.expr(condition))
    return judged.select(
        *columns.names,
        F.expr(f"if(_rejected, '{MALFORMED}', _kind)").alias("_kind"),
        "_partition",
        "_offset",
        F.when(F.col("_rejected"), reason).otherwise(F.col("_error")).alias("_error"),
        F.expr(f"if(_rejected, CAST(to_json(struct({fields})) AS BINARY), _body)").alias("_body"),
    )
