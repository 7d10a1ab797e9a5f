"""Does the measurement still answer to the command? A running regression of one on the other, while it matters.

A loop that works hides its own gain: it moves the command to cancel a disturbance, and the measurement stays
where it was. So nothing can be said while the error is small. It is when the error *stays* on one side of the
goal although the command moves that the answer counts. Such a spell is watched from its first sample (u₀,
y₀): with running sums the slope of y − y₀ on u − u₀ and its standard error cost a few additions a sample, and
no history is kept. The move of the command times the slope is what the command achieved:

lost       even the slope plus twice its error, times the move, is a small part of the error that remains
inverted   the measurement went away from the goal, and the slope is five times its error from zero (not two
or three: errors of noise that has a memory look smaller than they are)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

Finding: TypeAlias = Literal["lost", "inverted"]

_CLEAR = 5.0  # standard errors between a slope and zero, for a claim that it has the wrong sign
_REACTION = 0.2  # part of the remaining error that a working actuator would have moved by now


@dataclass(frozen=True, slots=True)
class Spell:
    """A time during which the error stayed on one side: where it began, and sums of moves since then."""

    side: int
    start_command: float
    start_measurement: float
    samples: int = 0
    sum_u: float = 0.0
    sum_y: float = 0.0
    sum_uu: float = 0.0
    sum_uy: float = 0.0
    sum_yy: float = 0.0


def follow(spell: Spell | None, side: int, command: float, measurement: float) -> Spell | None:
    """The spell after one more sample; `side` is the sign of an error worth mentioning, 0 where there is none."""
    if side == 0:
        return None
    if spell is None or spell.side != side:
        return Spell(side, command, measurement, samples=1)
    u, y = command - spell.start_command, measurement - spell.start_measurement
    return Spell(
        side,
        spell.start_command,
        spell.start_measurement,
        spell.samples + 1,
        spell.sum_u + u,
        spell.sum_y + y,
        spell.sum_uu + u * u,
        spell.sum_uy + u * y,
        spell.sum_yy + y * y,
    )


def slope(spell: Spell) -> tuple[float, float] | None:
    """Least-squares slope of the measurement on the command over the spell, and its standard error.

    >>> spell = None
    >>> for k in range(5):
    ...     spell = follow(spell, 1, command=10.0 + k, measurement=100.0 + 3.0 * k)
    >>> slope(spell)
    (3.0, 0.0)
    """
    n = spell.samples
    spread = spell.sum_uu - spell.sum_u * spell.sum_u / n
    if n < 3 or not spread > 1e-12 * spell.sum_uu:
        return None
    common = spell.sum_uy - spell.sum_u * spell.sum_y / n
    rest = spell.sum_yy - spell.sum_y * spell.sum_y / n - common * common / spread
    return common / spread, math.sqrt(max(0.0, rest) / ((n - 2) * spread))


def judge(spell: Spell, command: float, error: float) -> Finding | None:
    """What the spell shows so far about the gain, given the present command and the error that remains."""
    found = slope(spell)
    if found is None:
        return None
    gain, doubt = found
    moved = command - spell.start_command
    towards = gain * moved * spell.side  # how far the command's move brought the measurement to the goal
    if towards < -_REACTION * abs(error) and abs(gain) > _CLEAR * doubt:
        return "inverted"
    if (abs(gain) + 2.0 * doubt) * abs(moved) < _REACTION * abs(error):
        return "lost"
    return None
