"""Whether a recording can hold an answer at all; if not, what to do about it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flyball.control.models import Array
from flyball.errors import InvalidValue

NAMES = ("input", "output")
"""What complaints call the two series, unless the caller has names for them."""


def signals(
    commands: npt.ArrayLike,
    measurements: npt.ArrayLike,
    names: tuple[str, str] = NAMES,
    *,
    gaps: bool = False,
) -> tuple[Array, Array]:
    """The two series as arrays; with `gaps`, what is not a number is missing, else it is a mistake."""
    u, y = np.asarray(commands, dtype=float), np.asarray(measurements, dtype=float)
    if u.ndim != 1 or u.shape != y.shape:
        raise InvalidValue(
            f"commands and measurements must be two equally long series, got shapes {u.shape} and {y.shape}"
        )
    for name, signal in zip(names, (u, y), strict=True):
        finite = np.isfinite(signal) | (np.isnan(signal) if gaps else False)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InvalidValue(
                f"the {name} is {signal[row]} in sample {row + 1}; remove that part of the recording or repair it"
            )
    return u, y


def check_size(samples: int, lags: list[int], na: int, nb: int, offset: bool) -> None:
    parameters = na + nb + int(offset)
    needed = 2 * parameters + max(na, lags[-1] + nb - 1)
    if samples < needed:
        raise InvalidValue(
            f"{samples} samples are too few for {parameters} coefficients with an input lag of up to {lags[-1]}; "
            f"record at least {needed}"
        )


def check_movement(u: Array, y: Array, names: tuple[str, str] = NAMES) -> tuple[float, float]:
    """The input's extremes, once it is clear that there is something to learn from."""
    extremes = [(float(np.fmin.reduce(signal)), float(np.fmax.reduce(signal))) for signal in (u, y)]
    for (low, high), name, remedy in (
        (extremes[0], names[0], "move it while recording, for example by a staircase"),
        (extremes[1], names[1], "check that this column is what the input acts on"),
    ):
        if low == high:
            raise InvalidValue(
                f"the {name} is constant ({low:g} in all {u.size} samples), so nothing can be learnt about the "
                f"plant; {remedy}"
            )
    return extremes[0]
