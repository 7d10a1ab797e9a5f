"""What a client has done since it joined, as it reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Totals. `time_s` is the client's own clock: differences of two reports need no other."""

    time_s: float = 0.0
    confirmed: int = 0
    batches: int = 0
    """Batches that were confirmed."""
    waited_s: float = 0.0
    """For the confirms of these batches, all together."""
    delivered: int = 0
    busy_s: float = 0.0
    """With deliveries that were not settled yet."""
