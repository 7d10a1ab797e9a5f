"""Tier 1: what is done to each event on its own. Steps are functions DataFrame → DataFrame.

Only events are touched: malformed ones and marks pass every step, for the sink still has to see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from flyball.pipeline.columns import EVENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Step: TypeAlias = "Callable[[DataFrame], DataFrame]"


def keep(condition: str) -> Step:
    """Drop the events for which the SQL condition is not true."""

    def step(rows: DataFrame) -> DataFrame:
        return rows.where(f"_kind <> '{EVENT}' OR ({condition})")

    return step
