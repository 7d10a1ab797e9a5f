"""Where confirmed messages wait for a receipt: in the outbox file, or in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from flyball.publisher.handle import Handle, from_store
from flyball.publisher.memory_outbox import MemoryOutbox
from flyball.store.sent import SentMessages


class Kept(Protocol):
    @property
    def blocks(self) -> bool:
        """It waits for a disk: to be called by the publisher's workers."""

    def mark(self, handles: Sequence[Handle]) -> None:
        """A broker has these; they wait for their receipts from now on."""

    def received(self, ids: Sequence[str]) -> int:
        """The receipts of these came; how many were kept."""

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        """Fresh handles of what has waited for `timeout_s`, the longest first."""

    def count(self) -> int: ...


class KeptInFile:
    blocks = True

    def __init__(self, sent: SentMessages, required: int, urgency_step_s: float) -> None:
        self._sent, self._required, self._urgency_step_s = sent, required, urgency_step_s

    def mark(self, handles: Sequence[Handle]) -> None:
        self._sent.mark([handle.seq for handle in handles])

    def received(self, ids: Sequence[str]) -> int:
        return self._sent.received(ids)

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        found = self._sent.overdue(timeout_s, limit)
        return [from_store(pending, self._required, self._urgency_step_s) for pending in found]

    def count(self) -> int:
        return self._sent.count()


class KeptInMemory:
    """The oldest first, as a dictionary keeps them; `outbox` counts their bytes until they are received."""

    blocks = False

    def __init__(self, outbox: MemoryOutbox, required: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox, self._required, self._clock = outbox, required, clock
        self._sent: dict[str, tuple[float, Handle]] = {}

    def mark(self, handles: Sequence[Handle]) -> None:
        now_s = self._clock()
        for handle in handles:
            self._sent.pop(handle.id, None)
            self._sent[handle.id] = (now_s, handle)

    def received(self, ids: Sequence[str]) -> int:
        found = [self._sent.pop(id)[1].seq for id in dict.fromkeys(ids) if id in self._sent]
        self._outbox.confirm(found)
        return len(found)

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        before_s = self._clock() - timeout_s
        late: list[Handle] = []
        for sent_s, handle in self._sent.values():
            if sent_s > before_s or len(late) >= limit:
                break
            late.append(handle.again(self._required))
        return late

    def count(self) -> int:
        return len(self._sent)
