"""The base of all parts of a pipeline's config: unknown keys are mistakes, and nothing changes afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _beside_the_config(path: Path, info: ValidationInfo) -> Path:
    context: dict[str, Any] = info.context or {}
    return Path(context.get("folder", ".")) / path


NearPath = Annotated[Path, AfterValidator(_beside_the_config)]
"""A path that is relative to the folder of the config file."""
