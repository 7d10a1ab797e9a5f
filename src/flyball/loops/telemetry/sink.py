"""What every sink promises, and the flat rows that the storing sinks share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import ClassVar, NamedTuple, Protocol

from flyball.control.record import LoopRecord
from flyball.control.step import Value


class Sink(Protocol):
    """Receives records. `dropped` counts the records dropped to stay within its bound.

    `waits_for_disk` means that writing may block; the runner then writes in another task.
    """

    waits_for_disk: ClassVar[bool]
    dropped: int

    def write(self, records: Sequence[LoopRecord]) -> None: ...

    def flush(self) -> None:
        """Write what is buffered; called when a run ends."""
        ...


class Row(NamedTuple):
    """One record and one axis: a loop with several commands or measurements has a row for each of them."""

    loop: str
    time: float
    axis: int
    setpoint: float | None
    measurement: float | None
    applied: float | None
    proposed: float | None
    command: float | None
    mode: str | None
    frozen: bool
    saturated: int
    missed: int
    parts: str
    reason: str
    alert: str
    code: str


def rows(record: LoopRecord) -> Iterator[Row]:
    """Flatten a record; where measurements and commands differ in number, the missing ones are None."""
    columns = (record.setpoint, record.measurement, record.applied, record.proposed, record.command)
    parts = json.dumps(dict(record.parts)) if record.parts else "{}"
    for axis, (setpoint, measurement, applied, proposed, command) in enumerate(
        zip_longest(*(_components(value) for value in columns))
    ):
        yield Row(
            record.loop,
            record.time,
            axis,
            setpoint,
            measurement,
            applied,
            proposed,
            command,
            record.mode,
            record.frozen,
            record.saturated,
            record.missed,
            parts,
            record.reason,
            record.alert,
            record.code.value,
        )


def _components(value: Value | None) -> Sequence[float | None]:
    if value is None:
        return (None,)
    return value if isinstance(value, tuple) else (value,)
