"""The base of all config models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Rejects unknown keys; immutable after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True)
