"""What every tier-1 step is: its keys in the config, its effect on the columns, and its effect on the rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from flyball.pipeline.sql.columns import EVENT, Columns
from flyball.pipeline.sql.expressions import Scope
from flyball.strict_model import StrictModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWN = ("_kind", "_partition", "_offset", "_error", "_body")


class TierOneStep(StrictModel):
    """A step is checked by `output` before Spark starts, and then applied to every micro-batch.

    Malformed rows and marks pass every step untouched, for the sink still has to see them.
    """

    @abstractmethod
    def output(self, columns: Columns) -> Columns:
        """The columns after this step. Raises `InvalidValue`, the key first, if the step cannot work on these."""

    @abstractmethod
    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        """The rows after this step; `columns` are those before it."""


def scope(columns: Columns) -> Scope:
    """What the expressions of a step may use: the columns, and what the monitors say."""
    return Scope(columns.types, columns.values)


def is_event() -> str:
    return f"_kind = '{EVENT}'"
