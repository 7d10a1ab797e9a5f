"""How long handlers take: distributions of the mean 1, which a plant multiplies by its mean handling time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyball.control.models import Array
from flyball.errors import InvalidValue


class HandlerLaw(Protocol):
    def draw(self, rng: np.random.Generator, count: int) -> Array:
        """`count` positive numbers whose mean is 1."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Every message takes the same time."""

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        del rng
        return np.ones(count)


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma distributed with the standard deviation `spread`; 1 is exponential."""

    spread: float

    def __post_init__(self) -> None:
        _positive("spread of a gamma law", self.spread)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        shape = 1.0 / self.spread**2
        return rng.gamma(shape, 1.0 / shape, count)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal: `sigma` is the standard deviation of the logarithm. At 2, one in twenty takes 3.6 times the mean
    and the fastest tenth a hundredth of it."""

    sigma: float

    def __post_init__(self) -> None:
        _positive("sigma of a log-normal law", self.sigma)

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return np.exp(rng.normal(-0.5 * self.sigma**2, self.sigma, count))


@dataclass(frozen=True, slots=True)
class Bimodal:
    """A share of messages takes `ratio` times as long as the others, such as what a cache does not have.

    >>> sorted(set(Bimodal(0.25, 5.0).draw(np.random.default_rng(1), 100).round(3).tolist()))
    [0.5, 2.5]
    """

    slow_share: float = 0.2
    ratio: float = 50.0

    def __post_init__(self) -> None:
        if not 0.0 < self.slow_share < 1.0:
            raise InvalidValue(f"slow_share must be > 0 and < 1, got {self.slow_share}")
        if not 1.0 < self.ratio < math.inf:
            raise InvalidValue(f"ratio must be > 1, got {self.ratio}")

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        fast = 1.0 / (1.0 - self.slow_share + self.slow_share * self.ratio)
        return np.where(rng.random(count) < self.slow_share, self.ratio * fast, fast)


@dataclass(frozen=True, slots=True)
class Pareto:
    """A heavy tail: the share that takes longer than t falls as t^−alpha; up to 2 the variance is infinite."""

    alpha: float

    def __post_init__(self) -> None:
        if not 1.0 < self.alpha < math.inf:
            raise InvalidValue(f"alpha must be > 1, got {self.alpha}")

    def draw(self, rng: np.random.Generator, count: int) -> Array:
        return (1.0 + rng.pareto(self.alpha, count)) * (self.alpha - 1.0) / self.alpha


def quantile(law: HandlerLaw, share: float) -> float:
    """The number that `share` of the times do not exceed, from ten thousand draws.

    >>> round(quantile(LogNormal(2.0), 0.95), 1), quantile(Constant(), 0.95)
    (3.5, 1.0)
    """
    return float(np.quantile(law.draw(np.random.default_rng(1), 10_000), share))


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise InvalidValue(f"{what} must be a number > 0, got {value}")
