"""A lock on a file, for work that only one process of this host may do at a time."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from flyball.paths import create_private


def lock_file(path: Path, *, wait: bool = True) -> IO[bytes]:
    """Lock the file until the returned object is closed; the file is created if it does not exist.

    The system releases the lock when the process ends, however it ends: unlike a lease it needs no time to expire
    after kill -9. With `wait` False, BlockingIOError is raised if another process has the lock.
    """
    create_private(path)
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        file.close()
        raise
    return file


def unlock_file(file: IO[bytes]) -> None:
    """Release the lock and close the file. Closing alone leaves it locked while a forked child has it open."""
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()
