"""Is a loop swinging? Counts regular half waves of the error.

Noise crosses the goal too, but irregularly. A limit cycle or an unstable pole gives half waves that are
alike: as long as each other and as high, and they do not die down. So half waves are counted while each one
resembles the mean of those before it on the same side of the goal (a loop between two limits may swing much
further up than down), and the count starts again with the first that does not. A half wave ends when the
error shows beyond the tolerance on the other side.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball.control.filters import ewma

_LENGTH = 0.35  # a half wave may be this part longer or shorter than those before (or half a sample)
_HEIGHT = 2.0  # … and at most this factor higher; one much lower is a swing that dies down
_DECAY = 0.6
_KEEP = 0.75  # of the mean when a half wave is added


@dataclass(frozen=True, slots=True)
class Wave:
    """Mean length and height of the half waves on one side; None seen: length 0."""

    length: float = 0.0
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Swing:
    """The half wave under way and when it began, how many alike came before it, and what those were like.

    Samples are numbered by the caller, so that a sample without news needs no new value.
    """

    side: int = 0
    began: int = 0
    peak: float = 0.0
    alike: int = 0
    above: Wave = Wave()
    below: Wave = Wave()

    @property
    def period(self) -> float:
        return self.above.length + self.below.length


def follow(swing: Swing, number: int, error: float, tolerance: float) -> Swing:
    """The swing after the sample with this number.

    >>> swing = Swing()
    >>> for k in range(12):
    ...     swing = follow(swing, k, 5.0 if k % 4 < 2 else -5.0, tolerance=1.0)
    >>> swing.alike, swing.period
    (5, 4.0)
    """
    size = abs(error)
    if size <= tolerance:
        return swing
    side = 1 if error > 0.0 else -1
    if side == swing.side:
        if size <= swing.peak:
            return swing
        return Swing(side, swing.began, size, swing.alike, swing.above, swing.below)
    if swing.side == 0:  # nothing before the first crossing was a half wave
        return Swing(side, number, size)
    before = swing.below if swing.side > 0 else swing.above  # a positive error: the measurement is below the goal
    alike, wave = _compare(Wave(float(number - swing.began), swing.peak), before, swing.alike)
    above, below = (swing.above, wave) if swing.side > 0 else (wave, swing.below)
    return Swing(side, number, size, alike, above, below)


def _compare(fresh: Wave, before: Wave, alike: int) -> tuple[int, Wave]:
    """The half wave that just ended against those before it: how many are alike now, and the new mean."""
    if before.length == 0.0:
        return alike + 1, fresh
    regular = abs(fresh.length - before.length) <= max(0.5, _LENGTH * before.length)
    sustained = _DECAY * before.peak <= fresh.peak <= _HEIGHT * before.peak
    if not (regular and sustained):
        return 1, fresh
    return alike + 1, Wave(ewma(before.length, fresh.length, _KEEP), ewma(before.peak, fresh.peak, _KEEP))
