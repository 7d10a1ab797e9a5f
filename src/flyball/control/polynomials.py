"""The polynomials of a closed loop, in powers of z, highest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flyball.control.gains import ControllerPolynomials
from flyball.control.models import Array, Arx


@dataclass(frozen=True, eq=False)
class Loop:
    """The loop gain numerator/denominator, the characteristic polynomial, and the numerator from r to y."""

    numerator: Array
    denominator: Array
    characteristic: Array
    from_reference: Array


def closed_loop(plant: Arx, controller: ControllerPolynomials) -> Loop:
    """Close the loop of a plant and a controller: the characteristic polynomial is their denominators' product
    plus L's numerator, with nothing cancelled, so that hidden modes are seen too.

    >>> from flyball.control.gains import Gains
    >>> from flyball.control.models import first_order
    >>> closed_loop(first_order(0.5, 1.0), Gains(0.2).polynomials()).characteristic.tolist()
    [1.0, -0.3]
    """
    push, own = plant.numerator(), plant.denominator()
    numerator = np.convolve(controller.feedback, push)
    denominator = np.convolve(controller.denominator, own)
    ahead = np.convolve(controller.reference, push)
    # A factor z in all of them is a mode that is over at once and moves nothing: state feedback has some.
    while min(numerator.size, ahead.size) > 1 and denominator[-1] == numerator[-1] == ahead[-1] == 0.0:
        numerator, denominator, ahead = numerator[:-1], denominator[:-1], ahead[:-1]
    characteristic = np.asarray(np.polyadd(denominator, numerator), dtype=float)
    return Loop(numerator, denominator, characteristic, ahead)


def radii(polynomials: Array) -> Array:
    """The largest modulus of the roots of each row; rows begin with a coefficient that is not zero.

    >>> radii(np.array([[1.0, -0.5, 0.0], [2.0, 0.0, 0.5]])).round(9).tolist()
    [0.5, 0.5]
    """
    order = polynomials.shape[1] - 1
    if order == 0:
        return np.zeros(polynomials.shape[0])
    companion = np.zeros((polynomials.shape[0], order, order))
    companion[:, 0, :] = -polynomials[:, 1:] / polynomials[:, :1]
    companion[:, np.arange(1, order), np.arange(order - 1)] = 1.0
    return np.asarray(np.abs(np.linalg.eigvals(companion)).max(axis=1), dtype=float)
