"""Is a loop swinging? Counts regular half waves of the error.

Noise crosses the goal too, but irregularly. A limit cycle or an unstable pole gives half waves that are
alike: as long as each other and as high, and they do not die down. So half waves are counted while each one
resembles the mean of those before it, and the count starts again with the first that does not. A half wave
ends when the error shows beyond the tolerance on the other side.
"""

from __future__ import annotations

from dataclasses import dataclass

_LENGTH = 0.35  # a half wave may be this part longer or shorter than those before (or half a sample)
_HEIGHT = 2.0  # … and at most this factor higher; one much lower is a swing that dies down
_DECAY = 0.6
_WEIGHT = 0.25  # of the newest half wave in the mean


@dataclass(frozen=True, slots=True)
class Swing:
    """The half wave under way, and how many alike came before it."""

    side: int = 0
    length: int = 0
    peak: float = 0.0
    alike: int = 0
    mean_length: float = 0.0
    mean_peak: float = 0.0


def follow(swing: Swing, error: float, tolerance: float) -> Swing:
    """The swing after one more sample.

    >>> swing = Swing()
    >>> for k in range(12):
    ...     swing = follow(swing, 5.0 if k % 4 < 2 else -5.0, tolerance=1.0)
    >>> swing.alike, swing.mean_length
    (5, 2.0)
    """
    side = 0 if abs(error) <= tolerance else 1 if error > 0.0 else -1
    if side in (0, swing.side):
        peak = max(swing.peak, abs(error)) if side else swing.peak
        return Swing(swing.side, swing.length + 1, peak, swing.alike, swing.mean_length, swing.mean_peak)
    alike, mean_length, mean_peak = _compare(swing)
    return Swing(side, 1, abs(error), alike, mean_length, mean_peak)


def _compare(swing: Swing) -> tuple[int, float, float]:
    """The half wave that just ended against those before it: how many alike there are now, and their means."""
    if swing.side == 0:  # the first stretch is no half wave: it did not begin at a crossing
        return 0, 0.0, 0.0
    if swing.alike == 0:
        return 1, float(swing.length), swing.peak
    slack = max(0.5, _LENGTH * swing.mean_length)
    regular = abs(swing.length - swing.mean_length) <= slack
    sustained = _DECAY * swing.mean_peak <= swing.peak <= _HEIGHT * swing.mean_peak
    if not (regular and sustained):
        return 1, float(swing.length), swing.peak
    mean_length = swing.mean_length + _WEIGHT * (swing.length - swing.mean_length)
    return swing.alike + 1, mean_length, swing.mean_peak + _WEIGHT * (swing.peak - swing.mean_peak)
