"""What every sink promises, and the flat rows that the storing sinks share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, NamedTuple, Protocol

from flyball.control.step import Value
from flyball.loops.policy import Receipt


class Sink(Protocol):
    """Takes receipts. `dropped` counts what it had to forget to stay within its bound.

    `waits_for_disk` says that writing may take its time; the runner then writes beside the loops.
    """

    waits_for_disk: ClassVar[bool]
    dropped: int

    def write(self, receipts: Sequence[Receipt]) -> None: ...

    def flush(self) -> None:
        """Put down what was held back; called when a run ends."""
        ...


class Row(NamedTuple):
    """One receipt and one axis: a loop with several knobs or sensors has a row for each of them."""

    loop: str
    time: float
    axis: int
    setpoint: float | None
    measurement: float | None
    applied: float | None
    proposed: float | None
    command: float | None
    mode: str
    frozen: bool
    saturated: int
    missed: int
    parts: str
    reason: str
    alert: str
    code: str


def rows(receipt: Receipt) -> Iterator[Row]:
    """Flatten a receipt; where sensors and knobs differ in number, the missing places are None."""
    columns = (receipt.setpoint, receipt.measurement, receipt.applied, receipt.proposed, receipt.command)
    parts = json.dumps(dict(receipt.parts)) if receipt.parts else "{}"
    for axis, (setpoint, measurement, applied, proposed, command) in enumerate(
        zip_longest(*(_components(value) for value in columns))
    ):
        yield Row(
            receipt.loop,
            receipt.time,
            axis,
            setpoint,
            measurement,
            applied,
            proposed,
            command,
            receipt.mode,
            receipt.frozen,
            receipt.saturated,
            receipt.missed,
            parts,
            receipt.reason,
            receipt.alert,
            receipt.code.value,
        )


def _components(value: Value | None) -> Sequence[float | None]:
    if value is None:
        return (None,)
    return value if isinstance(value, tuple) else (value,)
