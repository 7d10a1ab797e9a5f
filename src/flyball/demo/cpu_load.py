"""CPU load: processes that use up a core for a while."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# It ends by itself, too: it must not outlive a parent that was killed before it could end it.
_BURN = """
import os, sys, time
if sys.argv[2]:
    os.sched_setaffinity(0, {int(sys.argv[2])})
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(100_000):
        pass
"""


def start_cpu_load(
    seconds: float, core: int | None = None, *, own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that uses up a core for `seconds`, `core` if one is given; `terminate()` ends it sooner.

    `own_session`: in a session of its own. Linux divides a core among sessions first, so each such process counts
    for itself.
    """
    core_text = "" if core is None else str(core)
    return subprocess.Popen([sys.executable, "-c", _BURN, str(seconds), core_text], start_new_session=own_session)


@contextmanager
def cpu_load(seconds: float, cores: Sequence[int | None], *, own_session: bool = False) -> Iterator[None]:
    """Load each of the cores (None: any core) until the block ends, for `seconds` at most."""
    processes = [start_cpu_load(seconds, core, own_session=own_session) for core in cores]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait()
