"""Limit a process to a part of one processor, by a quota of Linux's control groups (version 1)."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from flyball.errors import InvalidValue

_ROOT = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 10_000
"""Short, so that a process that has used its share pauses for milliseconds and not for a tenth of a second."""
_LEAST_QUOTA_US = 1_000
"""Linux takes no less."""
_REMOVE_S = 5.0


def can_limit() -> bool:
    """Whether this user may set quotas here."""
    return (_ROOT / "cpu.cfs_quota_us").exists() and os.access(_ROOT, os.W_OK)


class ProcessorShare:
    """A control group; `part` 0.2: a fifth of one processor. The processes in it have ended before `close`."""

    def __init__(self, part: float) -> None:
        self._folder = _ROOT / f"flyball-{secrets.token_hex(6)}"
        self._folder.mkdir()
        self._write("cpu.cfs_period_us", _PERIOD_US)
        self.set(part)

    def set(self, part: float) -> None:
        if part * _PERIOD_US < _LEAST_QUOTA_US:
            raise InvalidValue(f"part must be >= {_LEAST_QUOTA_US / _PERIOD_US:g} of a processor, got {part:g}")
        self._write("cpu.cfs_quota_us", round(part * _PERIOD_US))

    def add(self, pid: int) -> None:
        """Limit a process with all its threads."""
        self._write("cgroup.procs", pid)

    def close(self) -> None:
        deadline_s = time.monotonic() + _REMOVE_S
        while time.monotonic() < deadline_s:  # a process that was just killed is still in it
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.05)

    def _write(self, name: str, value: int) -> None:
        (self._folder / name).write_text(f"{value}\n")
