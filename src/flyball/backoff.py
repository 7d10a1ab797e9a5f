"""How long to wait before trying again: doubling, bounded, jittered so that many clients do not return at once."""

from __future__ import annotations

import random
from collections.abc import Iterator

ENDLESS = 10**9
"""Attempts of a caller that never gives up."""


def delays_s(
    attempts: int, *, first_s: float = 0.05, longest_s: float = 5.0, rng: random.Random | None = None
) -> Iterator[float]:
    """Yield `attempts` delays, each drawn between half and all of its nominal value.

    >>> [round(d, 3) for d in delays_s(3, rng=random.Random(1))]
    [0.028, 0.092, 0.176]
    """
    draw = (rng or random).uniform
    nominal = first_s
    for _ in range(attempts):
        yield draw(nominal / 2, nominal)
        nominal = min(2 * nominal, longest_s)


class ReconnectDelay:
    """The pause before a connection is opened again after it was lost.

    A connection that opens and is lost at once, again and again, is no better than one that does not open: the
    pause grows until a connection has lasted `stable_s`. After one that did, there is none.

    >>> delay = ReconnectDelay(rng=random.Random(1))
    >>> for opened_s, lost_s in ((0.0, 60.0), (60.0, 60.1), (61.0, 61.1), (62.0, 90.0)):
    ...     delay.opened(opened_s)
    ...     delay.lost(lost_s)
    ...     round(delay.remaining_s(lost_s), 3)
    0.0
    0.028
    0.092
    0.0
    """

    def __init__(self, *, longest_s: float = 2.0, stable_s: float = 5.0, rng: random.Random | None = None) -> None:
        self._longest_s, self._stable_s, self._rng = longest_s, stable_s, rng
        self._delays = self._begin()
        self._opened_s: float | None = None
        self._earliest_s = 0.0

    def opened(self, now_s: float) -> None:
        self._opened_s = now_s

    def lost(self, now_s: float) -> None:
        if self._opened_s is None:
            return  # reported before
        if now_s - self._opened_s >= self._stable_s:
            self._delays = self._begin()
            self._earliest_s = now_s
        else:
            self._earliest_s = now_s + next(self._delays)
        self._opened_s = None

    def remaining_s(self, now_s: float) -> float:
        """What is left of the pause."""
        return max(0.0, self._earliest_s - now_s)

    def _begin(self) -> Iterator[float]:
        return delays_s(ENDLESS, longest_s=self._longest_s, rng=self._rng)
