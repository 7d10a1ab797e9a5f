"""What a query's checkpoint says about the batches that were planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def last_offset(checkpoint: Path) -> dict[str, Any] | None:
    """The end of the last batch that was planned, finished or not; None: there is none yet."""
    folder = checkpoint / "offsets"
    numbers = [int(file.name) for file in folder.glob("*") if file.name.isdecimal()] if folder.is_dir() else []
    return offset_of(checkpoint, max(numbers)) if numbers else None


def watermark_s(checkpoint: Path, batch: int) -> float | None:
    """The watermark that a batch was planned with: what lay before it has been judged when the batch is done."""
    lines = _lines(checkpoint, batch)
    return None if lines is None else float(json.loads(lines[1])["batchWatermarkMs"]) / 1000


def offset_of(checkpoint: Path, batch: int) -> dict[str, Any] | None:
    """The end of a batch, with what the source put there for a repeat, such as `values`; written before the batch
    runs. None: Spark no longer keeps it, or not yet."""
    lines = _lines(checkpoint, batch)
    if lines is None:
        return None
    offset: dict[str, Any] = json.loads(lines[2])
    return offset


def _lines(checkpoint: Path, batch: int) -> list[str] | None:
    """A version, then the query's own settings, then a line for each source."""
    try:
        return (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    except FileNotFoundError:
        return None
