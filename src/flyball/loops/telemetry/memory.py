"""The newest receipts, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from flyball.errors import InvalidValue
from flyball.loops.policy import Receipt


class MemorySink:
    """A ring of the newest `capacity` receipts over all loops."""

    waits_for_disk: ClassVar[bool] = False

    def __init__(self, capacity: int = 20_000) -> None:
        if capacity < 1:
            raise InvalidValue(f"a ring of receipts needs a capacity from 1, got {capacity}")
        self._ring: deque[Receipt] = deque(maxlen=capacity)
        self._capacity = capacity
        self.dropped = 0

    def write(self, receipts: Sequence[Receipt]) -> None:
        self.dropped += max(0, len(self._ring) + len(receipts) - self._capacity)
        self._ring.extend(receipts)

    def receipts(self, loop: str | None = None) -> list[Receipt]:
        """What is remembered, oldest first; of one loop, or of all."""
        return [receipt for receipt in self._ring if loop is None or receipt.loop == loop]

    def flush(self) -> None:
        """Nothing is held back."""
