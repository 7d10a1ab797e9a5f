"""What every tier-1 step is: its keys in the config, its effect on the columns, and its effect on the rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from flyball.errors import InvalidValue
from flyball.pipeline.columns import EVENT, Columns
from flyball.pipeline.expressions import Scope, Typed, condition, value
from flyball.pipeline.strict import Strict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN = ("_kind", "_partition", "_offset", "_error", "_body")


class TierOneStep(Strict):
    """A step is checked by `output` before Spark starts, and then applied to every micro-batch.

    Malformed rows and marks pass every step untouched, for the sink still has to see them.
    """

    @abstractmethod
    def output(self, columns: Columns) -> Columns:
        """The columns after this step. Raises `InvalidValue`, the key first, if the step cannot work on these."""

    @abstractmethod
    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        """The rows after this step; `columns` are those before it."""


def checked_condition(key: str, text: str, columns: Columns) -> str:
    try:
        return condition(text, Scope(columns.types, columns.values))
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error}") from None


def checked_value(key: str, text: str, columns: Columns) -> Typed:
    try:
        return value(text, Scope(columns.types, columns.values))
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error}") from None


def known(key: str, name: str, columns: Columns) -> None:
    if name not in columns.names:
        raise InvalidValue(f"{key} names the column {name!r}, which is none of {', '.join(columns.names)}")


def is_event() -> str:
    return f"_kind = '{EVENT}'"
