"""Where a publisher keeps what it accepted: in a SQLite file that it alone relays, or in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from flyball.errors import FlyballError
from flyball.file_lock import lock_file
from flyball.publisher.memory_outbox import MemoryOutbox, OutboxLike
from flyball.publisher.options import OutboxConfig
from flyball.publisher.unreceipted import Kept, KeptInFile, KeptInMemory
from flyball.store import Outbox, SqliteDatabase, StoreError
from flyball.store.sent import SentMessages

_MEMORY_BYTES = 64 << 20
_DISK_BYTES = 4 << 30


class OutboxInUse(FlyballError, RuntimeError):
    """Another publisher relays this outbox: two would send everything twice."""


class Place:
    """An open outbox; opening and closing it waits for the disk. `memory` is it where there is no file."""

    def __init__(self, config: OutboxConfig, first_sequence: int) -> None:
        self.memory: MemoryOutbox | None = None
        self._lock: IO[bytes] | None = None
        self.database: SqliteDatabase | None = None
        self.outbox: OutboxLike
        if config.path is None:
            self.outbox = self.memory = MemoryOutbox(config.max_bytes or _MEMORY_BYTES, newest=first_sequence)
            return
        path = Path(config.path)
        self._lock = _locked(path)
        try:
            self.database = SqliteDatabase(path, durability=config.durability)
            self.outbox = Outbox(self.database, max_bytes=config.max_bytes or _DISK_BYTES)
        except BaseException:
            self.close()
            raise

    def kept(self, required: int, urgency_step_s: float) -> Kept:
        """Where confirmed messages wait for their receipts."""
        if self.memory is not None:
            return KeptInMemory(self.memory, required)
        assert self.database is not None
        return KeptInFile(SentMessages(self.database), required, urgency_step_s)

    def forget_sent(self) -> None:
        """An earlier run waited for receipts and this one does not: the broker has those messages."""
        if self.database is not None:
            SentMessages(self.database).forget_all()

    def close(self) -> None:
        if self.database is not None:
            self.database.close()
        if self._lock is not None:
            self._lock.close()


def _locked(place: Path) -> IO[bytes]:
    try:
        return lock_file(place.with_name(place.name + ".publisher"), wait=False)
    except BlockingIOError:
        raise OutboxInUse(
            f"another publisher relays the outbox {place}: use that one, or give this one another file "
            f"(this is process {os.getpid()})"
        ) from None
    except OSError as error:
        raise StoreError(f"cannot write next to the outbox {place}: {error.strerror or error}") from None
