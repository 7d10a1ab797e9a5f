"""Quantiles of a long stream of durations in bounded memory.

Values are counted in buckets whose bounds grow by a constant factor g, so a quantile is wrong by at most half a
bucket: a relative error of √g − 1, 0.5 % for g = 1.01. From a microsecond to a day that is ln(8.6e10) / ln(1.01),
about 2,500 buckets, however many values come. The largest value and the mean are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

_GROWTH = math.log(1.01)
_SMALLEST = 1e-6


class Histogram:
    """Counts positive numbers; what is below a millionth counts as a millionth.

    >>> times_s = Histogram()
    >>> times_s.add_all(n / 1000 for n in range(1, 1001))
    >>> round(times_s.quantile(0.5), 2), round(times_s.quantile(0.99), 2), times_s.largest
    (0.5, 0.99, 1.0)
    >>> Histogram().quantile(0.5) is None
    True
    """

    __slots__ = ("_buckets", "_sum", "count", "largest")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._sum = 0.0
        self.count = 0
        self.largest: float | None = None

    def add(self, value: float, times: int = 1) -> None:
        self._buckets[math.floor(math.log(max(value, _SMALLEST)) / _GROWTH)] += times
        self._sum += value * times
        self.count += times
        if self.largest is None or value > self.largest:
            self.largest = value

    def add_all(self, values: Iterable[float]) -> None:
        for value in values:
            self.add(value)

    @property
    def mean(self) -> float | None:
        return self._sum / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The value that `share` of all values do not exceed (nearest rank); None without values."""
        if self.largest is None:
            return None
        rank = max(1, math.ceil(share * self.count))
        below = 0
        for bucket in sorted(self._buckets):
            below += self._buckets[bucket]
            if below >= rank:
                # the geometric middle of the bucket, and never more than what really occurred
                return min(math.exp((bucket + 0.5) * _GROWTH), self.largest)
        return self.largest
