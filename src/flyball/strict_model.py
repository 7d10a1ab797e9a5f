"""The base of everything that is read from a config file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Unknown keys are mistakes, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)
