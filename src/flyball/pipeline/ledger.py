"""Where every event went: running totals, one entry a batch, kept in a log of the broker."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals up to and including a batch. Every event that came in is in exactly one of the other three."""

    batch: int = -1
    events_in: int = 0
    results: int = 0
    filtered: int = 0
    dead_letter: int = 0
    latest_event_time_s: float | None = None

    def plus(
        self, batch: int, *, rows: int, results: int, dead_letter: int, latest_event_time_s: float | None
    ) -> Totals:
        times = [time for time in (self.latest_event_time_s, latest_event_time_s) if time is not None]
        return replace(
            self,
            batch=batch,
            events_in=self.events_in + rows,
            results=self.results + results,
            dead_letter=self.dead_letter + dead_letter,
            filtered=self.filtered + rows - results - dead_letter,
            latest_event_time_s=max(times) if times else None,
        )

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Totals:
        return cls(**json.loads(body))


class Ledger:
    """The last two totals: Spark may repeat the last batch, which then starts from the total before it.

    >>> ledger = Ledger()
    >>> first = ledger.enter(0, rows=10, results=7, dead_letter=1, latest_event_time_s=5.0)
    >>> ledger.enter(0, rows=10, results=7, dead_letter=1, latest_event_time_s=5.0) == first
    True
    >>> first.filtered
    2
    """

    def __init__(self, entries: list[Totals] | None = None) -> None:
        self._entries = [Totals(), *(entries or [])][-2:]

    @property
    def now(self) -> Totals:
        return self._entries[-1]

    def enter(
        self, batch: int, *, rows: int, results: int, dead_letter: int, latest_event_time_s: float | None
    ) -> Totals:
        before = next(entry for entry in reversed(self._entries) if entry.batch < batch)
        total = before.plus(
            batch, rows=rows, results=results, dead_letter=dead_letter, latest_event_time_s=latest_event_time_s
        )
        self._entries = [before, total]
        return total
