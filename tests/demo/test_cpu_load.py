"""A hog burns CPU until it is ended, and no longer than it was told to."""

from __future__ import annotations

import os
from pathlib import Path

from flyball.demo.cpu_load import hogs, start_hog


def test_a_hog_ends_by_itself() -> None:
    assert start_hog(0.05).wait() == 0


def test_hogs_live_as_long_as_the_block_and_stay_on_their_core() -> None:
    core = min(os.sched_getaffinity(0))
    before = children()
    with hogs(600.0, [core, None]):
        started = children() - before
        assert len(started) == 2
    assert not children() & started


def children() -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(folder.name))
    return found
