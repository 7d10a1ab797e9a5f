"""The base of all config models."""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Strict, model_validator

_LARGEST = 10**18
_LONGEST_S = 1e9  # thirty years


class StrictModel(BaseModel):
    """Rejects unknown keys, and values that pydantic would turn into something that was not meant; immutable after
    validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_values(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, value in data.items():
                field = cls.model_fields.get(str(name))
                _check_value(
                    str(name), value, [] if field is None else [*_kinds(field.annotation), *field.metadata]
                )
        return data


def _check_value(name: str, value: Any, kinds: list[Any]) -> None:
    if isinstance(value, bool):
        strict = any(isinstance(kind, Strict) for kind in kinds)  # then pydantic refuses it itself
        if (int in kinds or float in kinds) and not (bool in kinds or Any in kinds or strict):
            raise ValueError(f"{name} must be a number, got {'true' if value else 'false'}")
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{name} must be a number between {-_LARGEST} and {_LARGEST}, got {value}")
    elif isinstance(value, float) and name.endswith("_s") and value > _LONGEST_S:
        if math.isinf(value) and any(getattr(kind, "allow_inf_nan", False) for kind in kinds):
            return
        raise ValueError(f"{name} must be at most {_LONGEST_S:g} seconds, got {value:g}")
    elif value == "" and Path in kinds:
        raise ValueError(f"{name} must be a path, got ''")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_value(f"{name}.{key}", item, [])


def _kinds(annotation: Any) -> typing.Iterator[Any]:
    """The classes that an annotation names, and what it says about them."""
    yield annotation
    for inner in typing.get_args(annotation):
        yield from _kinds(inner)
