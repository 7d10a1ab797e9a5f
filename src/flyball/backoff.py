"""How long to wait before trying again: doubling, bounded, jittered so that many clients do not return at once."""

from __future__ import annotations

import random
from collections.abc import Iterator


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
