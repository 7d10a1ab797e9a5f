"""Models of plants.

`Arx` is the usual model: one command, one measurement, an input delay of D samples and a constant offset c::

    y(k+1) = a₁·y(k) + … + aₙ·y(k−n+1) + b₁·u(k−D) + … + bₘ·u(k−D−m+1) + c

so its transfer function from u to y is (b₁ + … + bₘ·z^(1−m)) · z^(−D) / (z − a₁ − … − aₙ·z^(1−n)).
D = 0 means that a command sent at sample k is seen at sample k+1. `StateSpace` is for plants with
several commands or measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from flyball.errors import InvalidValue

Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arx:
    """An ARX model with input delay and offset.

    >>> plant = first_order(0.26, 59.73)
    >>> round(plant.gain, 2), plant.is_stable
    (80.72, True)
    >>> plant.simulate([10.0, 10.0, 10.0]).round(1).tolist()
    [597.3, 752.6, 793.0]
    """

    a: tuple[float, ...]
    b: tuple[float, ...]
    delay: int = 0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.a or not self.b:
            raise InvalidValue(f"a and b must each have at least one coefficient, got a={self.a}, b={self.b}")
        if not all(math.isfinite(x) for x in (*self.a, *self.b, self.offset)):
            raise InvalidValue(f"coefficients must be finite, got a={self.a}, b={self.b}, offset={self.offset}")
        if self.delay < 0:
            raise InvalidValue(f"delay must be a number of samples >= 0, got {self.delay}")

    @property
    def order(self) -> int:
        return len(self.a)

    def numerator(self) -> Array:
        """Coefficients of the transfer function's numerator in powers of z, highest first."""
        return self._shifted(np.asarray(self.b, dtype=float), self.order - self.delay - len(self.b))

    def denominator(self) -> Array:
        """Coefficients of the transfer function's denominator in powers of z, highest first."""
        return self._shifted(np.array([1.0, *(-x for x in self.a)]), self.delay + len(self.b) - self.order)

    @staticmethod
    def _shifted(coefficients: Array, zeros: int) -> Array:
        return np.concatenate([coefficients, np.zeros(max(0, zeros))])

    @property
    def poles(self) -> npt.NDArray[np.complex128]:
        return np.asarray(np.roots(self.denominator()), dtype=np.complex128)

    @property
    def is_stable(self) -> bool:
        return bool(np.all(np.abs(self.poles) < 1.0))

    @property
    def gain(self) -> float:
        """Steady-state change of y for one unit of u; infinite for an integrating plant."""
        rest = 1.0 - sum(self.a)
        return math.inf if rest == 0.0 else sum(self.b) / rest

    def simulate(self, commands: npt.ArrayLike, initial: float = 0.0) -> Array:
        """Free run: outputs y(1) … y(n) for commands u(0) … u(n−1), starting at rest at y = `initial`.

        Commands before the first are assumed to equal the first, so that a delay does not look like a step.
        """
        u = np.asarray(commands, dtype=float)
        past = np.full(self.delay + len(self.b) - 1, u[0] if u.size else 0.0)
        drive = np.convolve(np.concatenate([past, u]), self.b)[len(self.b) - 1 :]
        y = np.full(self.order + u.size, initial)
        reversed_a = np.asarray(self.a[::-1])
        for k in range(u.size):
            y[k + self.order] = reversed_a @ y[k : k + self.order] + drive[k] + self.offset
        return y[self.order :]

    def to_state_space(self) -> StateSpace:
        """Controllable canonical form, the delay included (the offset is not: it is a disturbance)."""
        den, num = self.denominator(), self.numerator()
        n = den.size - 1
        A = np.zeros((n, n))
        A[0, :] = -den[1:]
        A[1:, :-1] = np.eye(n - 1)
        B = np.zeros((n, 1))
        B[0, 0] = 1.0
        C = np.zeros((1, n))
        C[0, n - num.size :] = num
        return StateSpace(A, B, C)


def first_order(a: float, b: float, delay: int = 0, offset: float = 0.0) -> Arx:
    """The usual model y(k+1) = a·y(k) + b·u(k−delay) + offset."""
    return Arx((float(a),), (float(b),), int(delay), float(offset))


@dataclass(frozen=True, eq=False)
class StateSpace:
    """x(k+1) = A·x(k) + B·u(k),  y(k) = C·x(k).

    >>> plant = first_order(0.5, 2.0, delay=1).to_state_space()
    >>> plant.states, plant.inputs, plant.outputs
    (2, 1, 1)
    """

    A: Array
    B: Array
    C: Array

    def __post_init__(self) -> None:
        n = self.A.shape[0]
        if self.A.shape != (n, n) or self.B.shape[:1] != (n,) or self.B.ndim != 2 or self.C.shape[1:] != (n,):
            raise InvalidValue(
                f"the matrices do not fit together: A {self.A.shape}, B {self.B.shape}, C {self.C.shape}"
            )

    @property
    def states(self) -> int:
        return int(self.A.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.B.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.C.shape[0])

    @property
    def poles(self) -> npt.NDArray[np.complex128]:
        return np.asarray(np.linalg.eigvals(self.A), dtype=np.complex128)

    @property
    def is_stable(self) -> bool:
        return bool(np.all(np.abs(self.poles) < 1.0))

    def simulate(self, commands: npt.ArrayLike, initial: npt.ArrayLike | None = None) -> Array:
        """Outputs y(1) … y(n) for commands u(0) … u(n−1), one row a sample."""
        u = np.asarray(commands, dtype=float).reshape(-1, self.inputs)
        x = np.zeros(self.states) if initial is None else np.asarray(initial, dtype=float)
        out = np.empty((u.shape[0], self.outputs))
        for k, row in enumerate(u):
            x = self.A @ x + self.B @ row
            out[k] = self.C @ x
        return out


def add_error_sums(model: StateSpace, integral: bool = True) -> tuple[Array, Array]:
    """A and B of the model with the sums of errors σ as further states; `integral` False: of the model as it is.

    The error of the new sample is included, as in every controller here: σ(k+1) = σ(k) + r − C·x(k+1), so that::

        [x; σ](k+1) = [[A, 0], [−C·A, I]]·[x; σ] + [B; −C·B]·u
    """
    if not integral:
        return model.A, model.B
    n, p = model.states, model.outputs
    A = np.block([[model.A, np.zeros((n, p))], [-model.C @ model.A, np.eye(p)]])
    return A, np.vstack([model.B, -model.C @ model.B])
