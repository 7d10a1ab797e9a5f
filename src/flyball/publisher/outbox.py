"""The outbox of a publisher: a SQLite file that it alone relays, or memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Protocol

from flyball.errors import FlyballError, InvalidValue
from flyball.file_lock import lock_file
from flyball.publisher.handle import Handle
from flyball.publisher.options import OutboxConfig
from flyball.publisher.unreceipted import FileUnreceipted, MemoryUnreceipted, Unreceipted
from flyball.store import Outbox, Pending, SqliteDatabase, StoreError
from flyball.store.outbox import no_room
from flyball.store.sent import SentMessages

_MEMORY_BYTES = 64 << 20
_DISK_BYTES = 4 << 30


class OutboxInUse(FlyballError, RuntimeError):
    """Another publisher relays this outbox: two would send everything twice."""


class PublisherOutbox(Protocol):
    """What a publisher asks of its outbox."""

    @property
    def in_memory(self) -> bool:
        """True: no call waits for a disk, and nothing survives the process."""

    def append(self, handles: Sequence[Handle]) -> Sequence[int]:
        """Accept all or, if there is no room (`Full`), none; return their sequence numbers."""

    def confirm(self, seqs: Iterable[int]) -> None:
        """Remove what brokers have stored."""

    def read(self, first: int, last: int, limit: int) -> list[Pending]: ...

    def newest(self) -> int: ...

    def pending(self) -> tuple[int, int]:
        """Count what is stored: messages and their bytes."""

    def unreceipted(self, required: int, urgency_step_s: float) -> Unreceipted:
        """Return the part of the outbox that waits for delivery receipts."""

    def forget_sent(self) -> None:
        """Remove what an earlier run sent and had no receipt for: this one does not wait for receipts."""

    def close(self) -> None: ...


def open_outbox(config: OutboxConfig, first_sequence: int) -> PublisherOutbox:
    """Open the outbox; with a file, this waits for the disk."""
    if config.path is None:
        return MemoryOutbox(config.max_bytes or _MEMORY_BYTES, newest=first_sequence)
    return FileOutbox(Path(config.path), config)


class FileOutbox(Outbox):
    """The outbox of a SQLite file, locked against other publishers."""

    in_memory = False

    def __init__(self, path: Path, config: OutboxConfig) -> None:
        self._lock = _lock(path)
        try:
            self._sqlite = SqliteDatabase(path, durability=config.durability)
        except BaseException:
            self._lock.close()
            raise
        try:
            super().__init__(self._sqlite, max_bytes=config.max_bytes or _DISK_BYTES)
        except BaseException:
            self.close()
            raise

    def unreceipted(self, required: int, urgency_step_s: float) -> Unreceipted:
        return FileUnreceipted(SentMessages(self._sqlite), required, urgency_step_s)

    def forget_sent(self) -> None:
        SentMessages(self._sqlite).forget_all()

    def close(self) -> None:
        self._sqlite.close()
        self._lock.close()


class MemoryOutbox:
    """Counts what is accepted and not confirmed, so that it stays within `max_bytes`.

    The publisher holds the messages themselves; only their sizes are here. Numbers begin after `newest`.
    """

    in_memory = True

    def __init__(self, max_bytes: int, newest: int = 0) -> None:
        if max_bytes <= 0:
            raise InvalidValue(f"max_bytes must be an integer >= 1, got {max_bytes!r}")
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._newest = newest

    def append(self, handles: Sequence[Handle]) -> range:
        sizes = [handle.size_bytes for handle in handles]
        needed = sum(sizes)
        if self._bytes + needed > self._max_bytes:
            raise no_room(self._bytes, needed, self._max_bytes)
        first = self._newest + 1
        self._newest += len(sizes)
        self._bytes += needed
        seqs = range(first, self._newest + 1)
        self._sizes.update(zip(seqs, sizes, strict=True))
        return seqs

    def confirm(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._bytes -= self._sizes.pop(seq, 0)

    def read(self, first: int, last: int, limit: int) -> list[Pending]:  # noqa: ARG002
        return []  # the publisher holds every message: there is none to read

    def newest(self) -> int:
        return self._newest

    def pending(self) -> tuple[int, int]:
        return len(self._sizes), self._bytes

    def unreceipted(self, required: int, urgency_step_s: float) -> Unreceipted:  # noqa: ARG002
        return MemoryUnreceipted(self.confirm, required)

    def forget_sent(self) -> None:
        """Nothing survives an earlier run."""

    def close(self) -> None:
        """Nothing was opened."""


def _lock(path: Path) -> IO[bytes]:
    try:
        return lock_file(path.with_name(path.name + ".publisher"), wait=False)
    except BlockingIOError:
        raise OutboxInUse(
            f"another publisher relays the outbox {path}: use that one, or give this one another file "
            f"(this is process {os.getpid()})"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot write next to the outbox {path}: {error.strerror or error}") from None
