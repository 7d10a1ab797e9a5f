"""The newest records, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue


class MemorySink:
    """A ring of the newest `capacity` records over all loops."""

    waits_for_disk: ClassVar[bool] = False

    def __init__(self, capacity: int = 20_000) -> None:
        if capacity < 1:
            raise InvalidValue(f"capacity must be a number of records >= 1, got {capacity}")
        self._ring: deque[LoopRecord] = deque(maxlen=capacity)
        self._capacity = capacity
        self.dropped = 0

    def write(self, records: Sequence[LoopRecord]) -> None:
        self.dropped += max(0, len(self._ring) + len(records) - self._capacity)
        self._ring.extend(records)

    def records(self, loop: str | None = None) -> list[LoopRecord]:
        """The records in memory, oldest first; of one loop, or of all."""
        return [record for record in self._ring if loop is None or record.loop == loop]

    def flush(self) -> None:
        """Nothing to do: there is no buffer."""
