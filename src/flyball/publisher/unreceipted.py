"""Messages that a broker has confirmed and that wait for a delivery receipt: in the outbox file, or in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from flyball.publisher.handle import Handle, from_store
from flyball.store.sent import SentMessages


class Unreceipted(Protocol):
    @property
    def in_memory(self) -> bool:
        """False: calls wait for a disk, so the publisher's workers make them."""

    def add(self, handles: Sequence[Handle]) -> None:
        """A broker has these; they wait for their receipts from now on."""

    def remove(self, ids: Sequence[str]) -> int:
        """The receipts of these came; return how many were waiting."""

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        """Make new handles for what has waited for `timeout_s`, the longest first."""

    def discard(self, handle: Handle) -> None:
        """This one waits no more: it was rejected when it was sent again."""

    def count(self) -> int: ...


class FileUnreceipted:
    in_memory = False

    def __init__(self, sent: SentMessages, urgency_step_s: float) -> None:
        self._sent, self._urgency_step_s = sent, urgency_step_s

    def add(self, handles: Sequence[Handle]) -> None:
        self._sent.mark([handle.seq for handle in handles])

    def remove(self, ids: Sequence[str]) -> int:
        return self._sent.received(ids)

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        late = self._sent.overdue(timeout_s, limit)
        return [from_store(pending, self._urgency_step_s) for pending in late]

    def discard(self, handle: Handle) -> None:
        """The outbox moves it to its dead letters."""

    def count(self) -> int:
        return self._sent.count()


class MemoryUnreceipted:
    """By number, the oldest first in the order of the dictionary; `confirm` removes messages from the outbox."""

    in_memory = True

    def __init__(
        self, confirm: Callable[[Iterable[int]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._confirm, self._clock = confirm, clock
        self._sent: dict[int, tuple[float, Handle]] = {}
        self._seqs: dict[str, set[int]] = {}
        """The numbers of every id: a program may use an id more than once, and a receipt is for all of them."""

    def add(self, handles: Sequence[Handle]) -> None:
        now_s = self._clock()
        for handle in handles:
            self._sent.pop(handle.seq, None)
            self._sent[handle.seq] = (now_s, handle)
            self._seqs.setdefault(handle.id, set()).add(handle.seq)

    def remove(self, ids: Sequence[str]) -> int:
        seqs = [seq for id in ids for seq in self._seqs.pop(id, ())]
        for seq in seqs:
            del self._sent[seq]
        self._confirm(seqs)
        return len(seqs)

    def overdue(self, timeout_s: float, limit: int) -> list[Handle]:
        before_s = self._clock() - timeout_s
        late: list[Handle] = []
        for sent_s, handle in self._sent.values():
            if sent_s > before_s or len(late) >= limit:
                break
            late.append(handle.copy())
        return late

    def discard(self, handle: Handle) -> None:
        if self._sent.pop(handle.seq, None) is not None:
            self._seqs[handle.id].discard(handle.seq)
            if not self._seqs[handle.id]:
                del self._seqs[handle.id]

    def count(self) -> int:
        return len(self._sent)
