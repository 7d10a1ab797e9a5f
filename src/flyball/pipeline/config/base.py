"""Paths in a pipeline's config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo


def _beside_the_config(path: Path, info: ValidationInfo) -> Path:
    context: dict[str, Any] = info.context or {}
    return Path(context.get("folder", ".")) / path


NearPath = Annotated[Path, AfterValidator(_beside_the_config)]
"""A path that is relative to the folder of the config file."""
