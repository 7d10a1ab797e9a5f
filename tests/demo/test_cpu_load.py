"""CPU load lasts until it is ended, and no longer than its limit."""

from __future__ import annotations

import os
from pathlib import Path

from flyball.demo.cpu_load import cpu_load, start_cpu_load


def test_cpu_load_ends_by_itself() -> None:
    assert start_cpu_load(0.05).wait() == 0


def test_cpu_load_lasts_as_long_as_its_block() -> None:
    core = min(os.sched_getaffinity(0))
    before = children()
    with cpu_load(600.0, [core, None]):
        started = children() - before
        assert len(started) == 2
    assert not children() & started


def children() -> set[int]:
    pids = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                pids.add(int(folder.name))
    return pids
