"""What became of every event: a lane's running totals, carried by the entries of its result queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals up to and including a batch. Every event that came in is in exactly one of the other three."""

    batch: int = -1
    events_in: int = 0
    results: int = 0
    filtered: int = 0
    dead_letter: int = 0

    def plus(self, batch: int, *, rows: int, results: int, dead_letter: int) -> Totals:
        return replace(
            self,
            batch=batch,
            events_in=self.events_in + rows,
            results=self.results + results,
            dead_letter=self.dead_letter + dead_letter,
            filtered=self.filtered + rows - results - dead_letter,
        )

    @classmethod
    def of(cls, parts: Iterable[Totals]) -> Totals:
        """The totals of all lanes together.

        >>> Totals.of([Totals(3, 10, 6, 3, 1), Totals(4, 5, 5, 0, 0)])
        Totals(batch=4, events_in=15, results=11, filtered=3, dead_letter=1)
        """
        total = cls()
        for part in parts:
            total = cls(
                max(total.batch, part.batch),
                total.events_in + part.events_in,
                total.results + part.results,
                total.filtered + part.filtered,
                total.dead_letter + part.dead_letter,
            )
        return total


class Ledger:
    """The last two totals: Spark may repeat the last batch, which then starts from the total before it.

    >>> ledger = Ledger()
    >>> first = ledger.enter(0, rows=10, results=7, dead_letter=1)
    >>> ledger.enter(0, rows=10, results=7, dead_letter=1) == first
    True
    >>> first.filtered
    2
    """

    def __init__(self, entries: list[Totals] | None = None) -> None:
        self._entries = [Totals(), *(entries or [])][-2:]

    @property
    def now(self) -> Totals:
        return self._entries[-1]

    def enter(self, batch: int, *, rows: int, results: int, dead_letter: int) -> Totals:
        before = next(entry for entry in reversed(self._entries) if entry.batch < batch)
        total = before.plus(batch, rows=rows, results=results, dead_letter=dead_letter)
        self._entries = [before, total]
        return total
