"""Pole placement: the gains that give a loop the specified poles.

Settling and overshoot become poles as for a second-order loop: a pair r·e^(±jθ) decays to r^settling = e⁻⁴, about
2 %, within the settling time, so r = e^(−4/settling); half a turn of θ leads from the start to the first peak,
which is then r^(π/θ) high, so θ = π·ln r / ln overshoot.

P, PI, PID. The characteristic polynomial is linear in the gains, c(z) = D·A + (Σ kᵢ·Nᵢ)·B. It has the wanted poles
as roots when its remainder modulo w(z) = Π(z − pᵢ) is zero: as many linear equations as wanted poles. With a
delay there are more poles than gains: the rest falls where it falls, and the caller must look.

State feedback. With q = 1/z the controller is R(q)·u = Ki·r − S(q)·y with R = (1 + Σ kuⱼ·qʲ)(1 − q) and
S = Ki + (1 − q)·Σ kyᵢ·qⁱ, so c = A·R + B·S: as many gains as poles, delay included, and every pole can be placed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flyball.control.gains import Gains, StateGains, basis
from flyball.control.models import Array, Arx
from flyball.errors import InvalidValue

GAINS = {"p": 1, "pi": 2, "pid": 3}


def radius_of(settling: float) -> float:
    """The pole radius that settles within this many samples: e^(−4/settling)."""
    return math.exp(-4.0 / settling)


def pair_of(settling: float, overshoot: float) -> tuple[complex, complex]:
    """The pair of poles of a second-order loop with this settling and overshoot.

    >>> [complex(round(p.real, 3), round(p.imag, 3)) for p in pair_of(5.0, 0.14)]
    [(0.13+0.43j), (0.13-0.43j)]
    >>> pair_of(5.0, 0.0)[0] == pair_of(5.0, 0.0)[1] == radius_of(5.0)
    True
    """
    radius = radius_of(settling)
    angle = 0.0 if overshoot <= 0.0 else min(math.pi, math.pi * math.log(radius) / math.log(overshoot))
    pole = complex(radius * math.cos(angle), radius * math.sin(angle) if angle else 0.0)
    return pole, pole.conjugate()


def pole_count(plant: Arx, controller: str) -> int:
    """How many poles a user may choose: one a gain; for state feedback all of them."""
    if controller == "state":
        return plant.order + plant.delay + len(plant.b)
    return GAINS[controller]


def polynomial_of(poles: Sequence[complex]) -> Array:
    """The monic real polynomial with these roots; complex ones must come in conjugate pairs."""
    for pole in poles:
        if not (math.isfinite(pole.real) and math.isfinite(pole.imag)):
            raise InvalidValue(f"a pole must be a finite number, got {pole}")
    polynomial = np.atleast_1d(np.poly(np.asarray(poles, dtype=complex)))
    if np.abs(np.imag(polynomial)).max() > 1e-9 * np.abs(polynomial).max():
        listed = ", ".join(f"{pole:.4g}" for pole in poles)
        raise InvalidValue(f"complex poles come in conjugate pairs such as 0.5+0.3j,0.5-0.3j, got {listed}")
    return np.real(polynomial).astype(float)


def place_poles(
    plant: Arx, controller: str, poles: Sequence[complex], derivative_filter: float = 0.0
) -> Gains | StateGains:
    """The gains that give these closed-loop poles.

    >>> from flyball.control.models import first_order
    >>> gains = place_poles(first_order(0.26, 59.73), "pi", [0.5 + 0.33j, 0.5 - 0.33j])
    >>> assert isinstance(gains, Gains)
    >>> round(gains.kp, 4), round(gains.ki, 4)
    (-0.0017, 0.006)
    """
    count = pole_count(plant, controller)
    wanted = polynomial_of(poles)
    if controller == "state":
        if len(poles) > count:
            raise InvalidValue(f"state feedback of this plant has {count} poles, got {len(poles)}")
        return _place_state_poles(plant, np.concatenate([wanted, np.zeros(count - len(poles))]))
    if len(poles) != count:
        raise InvalidValue(f"{controller.upper()} places {count} pole{'s'[: count > 1]}, got {len(poles)}")
    denominator, terms = basis(controller, derivative_filter)
    own = np.convolve(denominator, plant.denominator())
    columns = np.column_stack([_remainder(np.convolve(term, plant.numerator()), wanted) for term in terms])
    solution = _solve(columns, -_remainder(own, wanted), plant)
    return Gains.of(solution.tolist(), derivative_filter)


def _remainder(polynomial: Array, divisor: Array) -> Array:
    """polynomial mod divisor (monic), as exactly deg(divisor) coefficients."""
    degree = divisor.size - 1
    rest = polynomial.astype(float).copy()
    for i in range(rest.size - degree):
        rest[i : i + degree + 1] -= rest[i] * divisor
    return np.concatenate([np.zeros(max(0, degree - rest.size)), rest[max(0, rest.size - degree) :]])


def _place_state_poles(plant: Arx, wanted: Array) -> StateGains:
    """Solve A·R + B·S = wanted (polynomials in q, lowest power first) for ki, ky and ku."""
    n, later = plant.order, plant.delay + len(plant.b) - 1
    difference = np.array([1.0, -1.0])
    own = np.convolve(np.array([1.0, *(-a for a in plant.a)]), difference)
    push = np.concatenate([np.zeros(plant.delay + 1), np.asarray(plant.b)])
    size = wanted.size

    def shifted(polynomial: Array, by: int) -> Array:
        column = np.zeros(size)
        column[by : by + polynomial.size] = polynomial
        return column

    on_outputs = np.convolve(push, difference)
    columns = [shifted(push, 0)]
    columns += [shifted(on_outputs, i) for i in range(n)]
    columns += [shifted(own, j) for j in range(1, later + 1)]
    solution = _solve(np.column_stack(columns)[1:], (wanted - shifted(own, 0))[1:], plant)
    return StateGains(
        ki=float(solution[0]),
        ky=tuple(map(float, solution[1 : 1 + n])),
        ku=tuple(map(float, solution[1 + n :])),
    )


def _solve(columns: Array, right: Array, plant: Arx) -> npt.NDArray[np.float64]:
    # Columns differ by the size of b: scaled, so that "singular" means the plant and not its units.
    scale = np.abs(columns).max(axis=0)
    if not np.all(scale > 0.0) or np.linalg.cond(columns / scale) > 1e12:
        raise InvalidValue(
            f"these poles cannot be placed with a={_listed(plant.a)}, b={_listed(plant.b)}: the command has no"
            " effect on the output, or a pole wanted here is a zero of the plant; choose other poles"
        )
    return np.asarray(np.linalg.solve(columns / scale, right) / scale, dtype=float)


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
