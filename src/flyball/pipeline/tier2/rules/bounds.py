"""A bound on one side: `above` or `below`."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from flyball.strict_model import StrictModel


class Bounded(StrictModel):
    above: Annotated[float | None, Field(allow_inf_nan=False, description="alert if the value is larger")] = None
    below: Annotated[float | None, Field(allow_inf_nan=False, description="alert if the value is smaller")] = None

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError("a rule needs either above or below")
        return self

    @property
    def beyond(self) -> str:
        """The bound as a SQL condition on the column `value`."""
        return f"value > {self.above!r}D" if self.above is not None else f"value < {self.below!r}D"

    @property
    def bound_in_words(self) -> str:
        return f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"
