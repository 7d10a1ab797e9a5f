"""The outbox of a publisher: a SQLite file that it alone relays, or memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Protocol

from flyball.errors import FlyballError, InvalidValue
from flyball.file_lock import lock_file, unlock_file
from flyball.publisher.dead_letters import DeadLetterBox, MemoryDeadLetters, RejectedHandle
from flyball.publisher.handle import Handle
from flyball.publisher.options import OutboxConfig
from flyball.publisher.unreceipted import FileUnreceipted, MemoryUnreceipted, Unreceipted
from flyball.store import DeadLetters, Outbox, Pending, SqliteDatabase, StoreError
from flyball.store.dead_letters import Rejection
from flyball.store.outbox import no_room
from flyball.store.sent import SentMessages
from flyball.store.sqlite import is_database

log = logging.getLogger(__name__)

_MEMORY_BYTES = 64 << 20
_DISK_BYTES = 4 << 30


class OutboxInUse(FlyballError, RuntimeError):
    """Another publisher relays this outbox: two would send everything twice."""


class PublisherOutbox(Protocol):
    """What a publisher asks of its outbox."""

    @property
    def in_memory(self) -> bool:
        """True: no call waits for a disk, and nothing survives the process."""

    @property
    def fate(self) -> str:
        """What becomes of unconfirmed messages when the publisher closes."""

    def append(self, handles: Sequence[Handle]) -> Sequence[int]:
        """Accept all or, if there is no room (`Full`), none; return their sequence numbers."""

    def settle(self, confirmed: Sequence[int], rejected: Sequence[RejectedHandle]) -> None:
        """Remove what brokers have stored, and move what they will never store to the dead letters.

        A repeated call changes nothing.
        """

    @property
    def dead_letters(self) -> DeadLetterBox: ...

    def read_part(self, first: int, last: int, limit: int, max_bytes: int) -> tuple[list[Pending], int]:
        """Read unconfirmed messages, and the number up to which these are all; see `Outbox.read_part`."""

    def newest(self) -> int: ...

    def pending(self) -> tuple[int, int]:
        """Count what is stored: messages and their bytes."""

    def unreceipted(self, urgency_step_s: float) -> Unreceipted:
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
        # The lock is beside the file itself, whatever links lead to it.
        path = path.resolve()
        self.fate = f"it is in the outbox {path}, and the next publisher on that file sends it"
        _check_file(path)  # before the lock, a file of its own; and after it, for what was made meanwhile
        self._lock = _lock(path)
        try:
            _check_file(path)
            self._sqlite = SqliteDatabase(path, durability=config.durability)
        except BaseException:
            unlock_file(self._lock)
            raise
        try:
            super().__init__(self._sqlite, max_bytes=config.max_bytes or _DISK_BYTES)
            self.dead_letters = DeadLetters(self._sqlite)
        except BaseException:
            self.close()
            raise

    def settle(self, confirmed: Sequence[int], rejected: Sequence[RejectedHandle]) -> None:
        if confirmed:
            self.confirm(confirmed)
        if rejected:
            self.dead_letters.add([Rejection(each.handle.seq, each.target, each.reason) for each in rejected])

    def unreceipted(self, urgency_step_s: float) -> Unreceipted:
        return FileUnreceipted(SentMessages(self._sqlite), urgency_step_s)

    def forget_sent(self) -> None:
        SentMessages(self._sqlite).forget_all()

    def close(self) -> None:
        try:
            self._sqlite.close()
        finally:
            unlock_file(self._lock)


class MemoryOutbox:
    """Counts what is accepted and not confirmed, so that it stays within `max_bytes`.

    The publisher holds the messages themselves; only their sizes are here. Numbers begin after `newest`. Dead
    letters have what the waiting messages leave of `max_bytes`; the oldest are discarded.
    """

    in_memory = True
    fate = "it is lost, because the outbox is in memory"

    def __init__(self, max_bytes: int, newest: int = 0) -> None:
        if max_bytes <= 0:
            raise InvalidValue(f"max_bytes must be an integer >= 1, got {max_bytes!r}")
        self._max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self._newest = newest
        self.dead_letters = MemoryDeadLetters()

    def append(self, handles: Sequence[Handle]) -> range:
        sizes = [handle.size_bytes for handle in handles]
        needed = sum(sizes)
        if self._bytes + needed > self._max_bytes:
            raise no_room(self._bytes, needed, self._max_bytes)
        if self._bytes + needed + self.dead_letters.size_bytes > self._max_bytes:
            self._discard(self._max_bytes - self._bytes - needed)
        first = self._newest + 1
        self._newest += len(sizes)
        self._bytes += needed
        seqs = range(first, self._newest + 1)
        self._sizes.update(zip(seqs, sizes, strict=True))
        return seqs

    def confirm(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._bytes -= self._sizes.pop(seq, 0)

    def settle(self, confirmed: Sequence[int], rejected: Sequence[RejectedHandle]) -> None:
        self.confirm(confirmed)
        for each in rejected:
            self.confirm([each.handle.seq])
            self.dead_letters.add(each)
        if rejected and self._bytes + self.dead_letters.size_bytes > self._max_bytes:
            self._discard(self._max_bytes - self._bytes)

    def take_dead_letters(self, numbers: Iterable[int] | None) -> list[Handle]:
        """Remove dead letters, and make new handles for them."""
        letters = self.dead_letters.take(numbers)
        return [Handle(letter.message, letter.channel, letter.urgency, size) for size, letter in letters]

    def _discard(self, max_bytes: int) -> None:
        discarded = self.dead_letters.discard_oldest(max_bytes)
        log.error("%d dead letters of an outbox in memory were discarded: max_bytes leaves no room", discarded)

    def read_part(self, first: int, last: int, limit: int, max_bytes: int) -> tuple[list[Pending], int]:  # noqa: ARG002
        return [], last  # the publisher holds every message: there is none to read

    def newest(self) -> int:
        return self._newest

    def pending(self) -> tuple[int, int]:
        return len(self._sizes), self._bytes

    def unreceipted(self, urgency_step_s: float) -> Unreceipted:  # noqa: ARG002
        return MemoryUnreceipted(self.confirm)

    def forget_sent(self) -> None:
        """Nothing survives an earlier run."""

    def close(self) -> None:
        """Nothing was opened."""


def _check_file(path: Path) -> None:
    """Refuse a file that cannot be an outbox, before one that locks it is made beside it.

    A file with hard links would have, by another name, another lock and another log of SQLite.
    """
    try:
        names = path.stat().st_nlink
        if not path.is_file():
            raise StoreError(f"the outbox must be a file, got {str(path)!r}, which is none; choose another path")
    except OSError:
        return  # it does not exist yet, or cannot be read: opening it says why
    if not is_database(path):
        raise StoreError(f"{path} is not a SQLite database; choose another file")
    if names > 1:
        raise StoreError(
            f"the outbox {path} has {names} names (hard links), and a publisher on another one would damage it: "
            "remove the others, or copy the file"
        )


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
