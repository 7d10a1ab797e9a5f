"""What every rule is: its keys in the config, the query that finds alerts, and what an alert says."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from flyball.errors import InvalidValue
from flyball.pipeline.sql.column_checks import check_column, checked_condition
from flyball.pipeline.sql.columns import EVENT, MARK, Column, Columns
from flyball.pipeline.sql.expressions import Scope
from flyball.strict_model import StrictModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OF_AN_ALERT = ("rule", "event_time", "window_start", "window_end", "value", "held_off", "text")
"""Fields of every alert; the columns it is grouped by stand beside them."""

_MOST_WINDOWS = 1000


class RuleBase(StrictModel):
    """A tier-2 rule over the ordered results."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_.-]+$", description="unique in the pipeline")]
    where: Annotated[str, Field(description="SQL condition that chooses the events")] = "true"
    group_by: Annotated[
        tuple[str, ...], Field(description="columns; each combination of values is judged alone")
    ] = ()
    dedup: Annotated[
        bool, Field(description="one alert for a condition that lasts over adjoining windows, not one for each")
    ] = False
    hold_off_s: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="after an alert, the same group is quiet that long")
    ] = 0.0
    to: Annotated[str | None, Field(description="channel for the alerts; by default that of the pipeline")] = None

    def check(self, columns: Columns) -> None:
        """Raise `InvalidValue`, the key first, if the rule cannot work on these columns."""
        self.where_sql(columns)
        for name in self.group_by:
            check_column("group_by", name, columns)
            if name in OF_AN_ALERT:
                raise InvalidValue(
                    f"group_by: an alert has a field {name!r} of its own; copy the column to another name by set"
                )
        if len(set(self.group_by)) != len(self.group_by):
            raise InvalidValue(f"group_by names a column twice: {', '.join(self.group_by)}")

    def reads(self, columns: Columns, event_time: str) -> Columns:
        """The columns that the rule looks at: rows with fewer columns go through Spark faster.

        Whatever the rule's text mentions counts, so that none is missed, however the rule uses it.
        """
        words = {word for text in _texts(self.model_dump()) for word in re.findall(r"\w+", text.lower())}
        names = [name for name in columns.names if name == event_time or name.lower() in words]
        return columns.only(names)

    def where_sql(self, columns: Columns) -> str:
        """`where` as Spark SQL."""
        return checked_condition("where", self.where, Scope(columns.types))

    def fields(self, columns: Columns) -> Columns:
        """What an alert has besides the fields of every alert."""
        return Columns(tuple(Column(name, columns.types[name], required=False) for name in self.group_by))

    @property
    @abstractmethod
    def reach_s(self) -> float:
        """How far event time has to run on after the last event until everything is judged."""

    @property
    def lag_s(self) -> float:
        """How much older than the watermark an alert can be that is still to come."""
        return 0.0

    @abstractmethod
    def find(self, events: DataFrame, columns: Columns) -> DataFrame:
        """Rows with window_start, window_end, value, the columns of the group, and what the rule adds.

        `events` are those that `where` chose, with their time in `_time`, behind the watermark.
        """

    @abstractmethod
    def describe(self, row: dict[str, Any]) -> str:
        """The alert in words, without its time."""

    @property
    def gated(self) -> bool:
        """Whether some alerts may be held back."""
        return self.dedup or self.hold_off_s > 0

    def group_of(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self.group_by}


class Windowed(RuleBase):
    """A rule that looks at windows of time, one after the other or, with `every_s`, overlapping."""

    window_s: Annotated[float, Field(ge=0.001, allow_inf_nan=False, description="length of a window")] = 10.0
    every_s: Annotated[
        float | None,
        Field(ge=0.001, allow_inf_nan=False, description="a window starts that often; default: window_s"),
    ] = None

    @property
    def reach_s(self) -> float:
        return self.window_s

    def check(self, columns: Columns) -> None:
        super().check(columns)
        if self.every_s is not None and self.every_s > self.window_s:
            raise InvalidValue(
                f"every_s = {self.every_s:g} would leave gaps; at most window_s = {self.window_s:g}"
            )
        if self.every_s is not None and self.window_s / self.every_s > _MOST_WINDOWS:
            raise InvalidValue(
                f"every_s = {self.every_s:g} puts each event into {self.window_s / self.every_s:.0f} windows; "
                f"at most {_MOST_WINDOWS}: choose a larger every_s"
            )

    def window(self) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 (its usual name)

        every = None if self.every_s is None else milliseconds(self.every_s)
        return F.window("_time", milliseconds(self.window_s), every)


def _texts(value: Any) -> Iterator[str]:
    """Every text in the values of a model, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _texts(part))
    elif isinstance(value, Sequence):
        yield from (text for part in value for text in _texts(part))


def milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)} milliseconds"


def with_event_time(rows: DataFrame, event_time: str, watermark_s: float, ahead_s: float) -> DataFrame:
    """The rows with their time in `_time`, behind a watermark.

    Marks move the watermark like events do. `ahead_s` is how much farther than this rule needs it the mark at the
    end of the input runs ahead of the last event; it is taken off.
    """
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    ends = (F.col("_kind") == MARK) & F.col("_body").isNotNull()
    time = F.col(event_time) - F.when(ends, F.lit(ahead_s)).otherwise(F.lit(0.0))
    with_time = rows.withColumn("_time", F.timestamp_seconds(time))
    return with_time.withWatermark("_time", milliseconds(watermark_s))


def only_events(rows: DataFrame, where: str) -> DataFrame:
    """The events that a rule looks at.

    Spark moves conditions in front of the watermark, which then would not see the marks. It leaves one alone that
    looks at the time column, so the choice is wrapped into such a condition.
    """
    return rows.where(f"CASE WHEN _time IS NULL THEN false ELSE _kind = '{EVENT}' AND {where} END")


def clock(time_s: float) -> str:
    """The time of day; of a time that no calendar has, such as milliseconds taken for seconds, the number.

    >>> clock(1.7e9), clock(1.7e12)
    ('22:13:20', '1.7e+12 s')
    """
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{time_s:g} s"
