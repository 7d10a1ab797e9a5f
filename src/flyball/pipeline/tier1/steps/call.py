"""A step written in Python: a function DataFrame → DataFrame, named "module:function"."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from flyball.errors import FlyballError, InvalidValue
from flyball.pipeline.split.shares import END
from flyball.pipeline.sql.columns import MALFORMED, MARK, Columns
from flyball.pipeline.tier1.steps.base import OWN, TierOneStep

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StepFailed(FlyballError, RuntimeError):
    """A user's step returned rows that the pipeline cannot go on with."""


class Call(TierOneStep):
    """The function gets all rows. It may drop events (`_kind` = 'event'), and has to leave the others alone."""

    step: Literal["call"] = "call"
    call: Annotated[str, Field(description="module:function, found beside the config file or installed")]
    gives: Annotated[
        str | None, Field(description="the columns after the step; by default the same as before")
    ] = None

    @field_validator("call")
    @classmethod
    def _importable(cls, name: str, info: ValidationInfo) -> str:
        folder = str((info.context or {}).get("folder", ""))
        if folder and folder not in sys.path:
            sys.path.append(folder)
        _function(name)
        return name

    @field_validator("gives")
    @classmethod
    def _columns(cls, text: str | None) -> str | None:
        if text is not None:
            Columns.parse(text)
        return text

    def output(self, columns: Columns) -> Columns:
        return columns if self.gives is None else Columns.parse(self.gives).knowing(columns.values)

    def rehearse(self, spark: SparkSession, columns: Columns) -> None:
        """Raise `StepFailed` if the function does not leave rows alone that are no events.

        They say where a lane's share ends and what was malformed: without them results would be lost.
        """
        import pyarrow as pa
        from pyspark.errors import PySparkException

        kinds = [END, MALFORMED, MARK]
        rows = pa.Table.from_pylist([{"_kind": kind} for kind in kinds], schema=columns.row_schema())
        try:
            kept = self.apply(spark.createDataFrame(rows), columns).toArrow()["_kind"].to_pylist()
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise StepFailed(f"{self.call} cannot work on the events: {reason}") from error
        lost = [kind for kind in kinds if kept.count(kind) != 1]
        if lost:
            raise StepFailed(
                f"{self.call} dropped or multiplied a row whose _kind is {lost[0]!r}; leave rows alone whose "
                "_kind is not 'event', for example by rows.where(\"_kind <> 'event' OR …\")"
            )

    def apply(self, rows: DataFrame, columns: Columns) -> DataFrame:
        after = self.output(columns)
        found = _function(self.call)(rows)
        if not hasattr(found, "selectExpr"):
            raise StepFailed(f"{self.call} returned {type(found).__name__}; it must return a DataFrame")
        missing = [name for name in (*after.names, *OWN) if name not in found.columns]
        if missing:
            raise StepFailed(
                f"{self.call} returned rows without the column {missing[0]!r}; keep it, or declare what it gives"
            )
        casts = [f"CAST(`{name}` AS {kind}) AS `{name}`" for name, kind in after.types.items()]
        return found.selectExpr(*casts, *OWN)


def _function(name: str) -> Callable[[DataFrame], DataFrame]:
    module, _, function = name.partition(":")
    if not module or not function:
        raise InvalidValue(f"{name!r} does not name a function; write module:function")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise InvalidValue(f"{name!r} cannot be imported ({error}); put it beside the config file") from None
    if not callable(found):
        raise InvalidValue(f"{name!r}: the module {module} has no function {function!r}; correct the name")
    called: Callable[[DataFrame], DataFrame] = found
    return called
