"""The clock of leases: seconds since the host started, and an id of that start.

Wall clocks jump (NTP, an operator, a virtual machine that was restored), and by them a lease could be lost or have
two holders. The kernel's boot clock never jumps, runs during suspend, and is the same for every process of the
host; after a restart of the host it begins again, with another boot id.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostTime:
    """A moment: `seconds` since the start of the host with the id `boot`."""

    boot: str
    seconds: float


def host_time() -> HostTime:
    """The current time."""
    return HostTime(_boot(), time.clock_gettime(_CLOCK))


# Not every system has the boot clock; its monotonic clock then stands still during suspend, which delays a
# take-over by that time and endangers nothing.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return (
            ""  # leases.py recognises an older boot by its impossible time left, one time to live later at worst
        )
