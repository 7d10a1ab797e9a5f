"""A CPU hog: processes that do nothing but use up a core, for a while."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# It ends by itself, too: a hog must not outlive whoever was killed before ending it.
_BURN = """
import os, sys, time
if sys.argv[2]:
    os.sched_setaffinity(0, {int(sys.argv[2])})
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(100_000):
        pass
"""


def start_hog(seconds: float, core: int | None = None, *, apart: bool = False) -> subprocess.Popen[bytes]:
    """A process that burns CPU for so long, on that core if one is named; `terminate()` ends it sooner.

    `apart`: in a session of its own. Linux shares a core among sessions first, so each such hog counts for itself.
    """
    where = "" if core is None else str(core)
    return subprocess.Popen([sys.executable, "-c", _BURN, str(seconds), where], start_new_session=apart)


@contextmanager
def hogs(seconds: float, cores: Sequence[int | None], *, apart: bool = False) -> Iterator[None]:
    """One for each of the cores (None: any core) as long as the block lasts, and no longer than `seconds`."""
    running = [start_hog(seconds, core, apart=apart) for core in cores]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait()
