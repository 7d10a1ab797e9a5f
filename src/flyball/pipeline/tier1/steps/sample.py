"""Sample: keep a random share of the events, the same ones whenever they are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flyball.pipeline.sql.column_checks import check_column
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier1.steps.base import TierOneStep, is_event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTS = 1_000_000


class Sample(TierOneStep):
    """Chance is a hash of the event's place in its log, or of a column's value: then all or none of a value."""

    step: Literal["sample"] = "sample"
    sample: Annotated[float, Field(gt=0, le=1, description="share of the events that is kept")]
    by: Annotated[str | None, Field(description="column whose values are kept or dropped together")] = None
    seed: Annotated[int, Field(ge=0, lt=2**31, description="another seed, another sample")] = 0

    def output(self, columns: Columns) -> Columns:
        if self.by is not None:
            check_column("by", self.by, columns)
        return columns

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:  # noqa: ARG002
        return rows.where(f"NOT {is_event()} OR {share_condition(self.sample, self.seed, self.by)}")


def share_condition(share: float, seed: int, by: str | None = None) -> str:
    """A SQL condition that is true for that share of the rows.

    >>> share_condition(0.25, 7)
    'pmod(xxhash64(7L, _partition, _offset), 1000000L) < 250000L'
    """
    what = "_partition, _offset" if by is None else f"`{by}`"
    return f"pmod(xxhash64({seed}L, {what}), {_PARTS}L) < {round(share * _PARTS)}L"
