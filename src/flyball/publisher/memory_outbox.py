"""An outbox without a file: as fast as it gets, and lost with the process. Same protocol as `store.outbox`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from flyball.errors import InvalidValue
from flyball.store.outbox import OutboxEntry, Pending
from flyball.store.protocol import Full


class OutboxLike(Protocol):
    """What a publisher asks of its outbox; `flyball.store.Outbox` is one."""

    def append(self, entries: Sequence[OutboxEntry]) -> list[int]: ...

    def confirm(self, seqs: Iterable[int]) -> None: ...

    def read(self, first: int, last: int, limit: int) -> list[Pending]: ...

    def newest(self) -> int: ...

    def pending(self) -> tuple[int, int]: ...


class MemoryOutbox:
    """Counts what is accepted and not confirmed, so that it stays within `max_bytes`.

    The messages themselves are in the publisher's hands already; here only their sizes are kept. `enter` is
    `append` for a caller that knows the sizes. Numbers begin after `newest`.
    """

    def __init__(self, max_bytes: int, newest: int = 0) -> None:
        if max_bytes <= 0:
            raise InvalidValue(f"max_bytes of an outbox has to be positive, not {max_bytes}")
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._newest = newest

    def enter(self, sizes: Sequence[int]) -> range:
        needed = sum(sizes)
        if self._bytes + needed > self._max_bytes:
            raise Full(
                f"the outbox holds {self._bytes} of at most {self._max_bytes} bytes and {needed} more do not fit: "
                "wait until some are confirmed, or raise max_bytes"
            )
        first = self._newest + 1
        self._newest += len(sizes)
        self._bytes += needed
        seqs = range(first, self._newest + 1)
        self._sizes.update(zip(seqs, sizes, strict=True))
        return seqs

    def append(self, entries: Sequence[OutboxEntry]) -> list[int]:
        return list(self.enter([len(entry.message.body) for entry in entries]))

    def confirm(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._bytes -= self._sizes.pop(seq, 0)

    def read(self, first: int, last: int, limit: int) -> list[Pending]:  # noqa: ARG002
        return []  # nothing survives, so there is nothing that the publisher does not hold

    def newest(self) -> int:
        return self._newest

    def pending(self) -> tuple[int, int]:
        return len(self._sizes), self._bytes
