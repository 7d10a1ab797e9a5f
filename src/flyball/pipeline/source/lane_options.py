"""What a pipeline tells its source about its lanes: one option of the source, `_pipeline`, as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneOptions:
    """A controller shares each batch among the lanes and holds each lane's result queue at some free space.

    A lane ends its share with a row of kind `end`. With `lane` the source is that one lane, and a splitter says
    what it reads.

    >>> LaneOptions.from_json(LaneOptions(result_queue="results", lane=1).to_json()).lane
    1
    """

    result_queue: str
    """what the result queues are named after"""
    queue_bytes: int = 64_000_000
    free_bytes: int = 40_000_000
    """free space of a result queue that flow control holds"""
    balance: bool = True
    control: bool = True
    """False: equal shares of as many rows as are allowed at all"""
    lane: int | None = None
    values: str = ""
    """a log whose last values go into each batch's offset"""
    telemetry: str = ""
    """the file for records of the loops"""
    gains: tuple[float, float] | None = None
    """kp and ki of flow control; None: those that come with the pipeline"""
    played: tuple[float, ...] = ()
    """admission of an experiment, played instead of controlled"""
    max_ahead_s: float = math.inf
    """events with times farther ahead of the clock are malformed"""
    sample: tuple[str, ...] = ()
    """columns of which the row of kind `end` carries a random sample"""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> LaneOptions:
        try:
            fields = json.loads(text)
            for name in ("gains", "played", "sample"):
                if fields.get(name) is not None:
                    fields[name] = tuple(fields[name])
            return cls(**fields)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidValue(
                f"option _pipeline of the source flyball is written by pipelines, got {text!r}: leave it out"
            ) from error
