"""One candidate for the leadership of a group or cluster: it campaigns, and resigns when it cannot do the work.

A leader that fails three rounds in a row resigns, and lets others try first.
"""

from __future__ import annotations

import logging
import math
import time
from contextlib import suppress
from typing import Protocol

from flyball.store.leases import Lease
from flyball.store.protocol import StoreError

log = logging.getLogger("flyball.store")

MAX_FAILURES = 3


class LeaseOffice(Protocol):
    """Where a candidate campaigns; `LedState` is one."""

    def campaign(self, candidate: str, ttl_s: float) -> Lease | None: ...

    def resign(self, lease: Lease | None, candidate: str) -> None: ...


class Candidacy:
    """All calls must come from one thread at a time, and may wait for the store."""

    def __init__(self, office: LeaseOffice, candidate: str, *, ttl_s: float) -> None:
        self._office, self.candidate, self._ttl_s = office, candidate, ttl_s
        self.lease: Lease | None = None
        self._failures = 0
        self._pause_until_s = -math.inf

    @property
    def leads(self) -> bool:
        return self.lease is not None

    def campaign(self) -> tuple[Lease | None, bool]:
        """The lease, if it is ours, and whether another may have led since the last call."""
        if time.monotonic() < self._pause_until_s:
            return None, True
        before, self.lease = self.lease, self._office.campaign(self.candidate, self._ttl_s)
        is_new = before is None or self.lease is None or self.lease.token != before.token
        return self.lease, is_new

    def note_success(self) -> None:
        self._failures = 0

    def note_failure(self, error: BaseException) -> None:
        """A round failed."""
        self._failures += 1
        if self._failures >= MAX_FAILURES and self.lease is not None:
            log.warning("%s resigns as leader after %d failed rounds: %s", self.candidate, self._failures, error)
            self._pause_until_s = time.monotonic() + 2 * self._ttl_s
            with suppress(StoreError):  # then the lease expires
                self.resign()

    def resign(self) -> None:
        """Give the lease back and stop being a candidate."""
        lease, self.lease, self._failures = self.lease, None, 0
        self._office.resign(lease, self.candidate)
