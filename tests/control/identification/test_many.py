"""Many series at once give what `identify` gives for each by least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flyball.control.identification.identify import identify
from flyball.control.identification.many import Fits, identify_many
from flyball.errors import InvalidValue
from tests.new_cases import case_seed


def series(rng: np.random.Generator, size: int) -> tuple[Any, Any]:
    a, b, c = rng.uniform(-0.3, 0.95), rng.choice([-1, 1]) * rng.uniform(0.5, 60), rng.uniform(-100, 100)
    lag = int(rng.integers(0, 4))
    u = np.repeat(rng.integers(1, 40, size), rng.integers(1, 4))[:size].astype(float)
    y = np.zeros(size)
    y[0] = c / (1 - a)
    for k in range(1, size):
        y[k] = a * y[k - 1] + b * u[max(0, k - lag)] + c + rng.normal(0, 5)
    return u, y


def packed(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    starts = np.cumsum([0, *(u.size for u, _ in pairs[:-1])])
    return np.concatenate([u for u, _ in pairs]), np.concatenate([y for _, y in pairs]), starts


@pytest.mark.hypothesis  # its cases are generated, too
@pytest.mark.parametrize(
    "options",
    [{}, {"offset": False}, {"align": "same"}, {"delay": 1, "align": "next"}, {"delay": 0}],
    ids=lambda options: str(options),
)
def test_equal_to_one_by_one(options: dict[str, Any]) -> None:
    seed = case_seed()
    rng = np.random.default_rng(seed)
    pairs = [series(rng, int(rng.integers(12, 150))) for _ in range(150)] + [series(rng, 2500)]
    fits = identify_many(*packed(pairs), **options)
    fitted = 0
    for number, (u, y) in enumerate(pairs):
        if fits.problem[number]:
            with pytest.raises(InvalidValue):
                identify(u, y, whole_range=True, method="least squares", **options)
            continue
        one = identify(u, y, whole_range=True, method="least squares", **options)
        fitted += 1
        assert fits.lag[number] == one.model.delay + (one.align == "next"), (seed, number)
        found = [getattr(fits, name)[number] for name in ("a", "b", "c", "r2", "rmse", "r2_free_run", "samples")]
        expected = [one.model.a[0], one.model.b[0], one.model.offset]
        expected += [one.r2, one.rmse, one.r2_free_run, one.score.samples]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-7), (seed, number)
        for name in ("a", "b"):
            low, high = one.confidence[name]
            assert getattr(fits, f"{name}_error")[number] == pytest.approx((high - low) / 2, rel=1e-6), (
                seed,
                number,
            )
    assert fitted > 100


def test_what_cannot_be_fitted_says_why_and_disturbs_no_other() -> None:
    rng = np.random.default_rng(5)
    good = series(rng, 60)
    still, hole, few = (good[0] * 0 + 3, good[1]), (good[0], good[1].copy()), (good[0][:5], good[1][:5])
    hole[1][7] = np.nan
    together = (np.repeat([1.0, 2.0], 30), np.repeat([1.0, 2.0], 30))
    flat = (good[0], good[1] * 0)
    fits: Fits = identify_many(*packed([good, still, hole, few, together, flat, good]), delay=0, align="next")
    assert list(fits.problem) == [
        "",
        "the input is constant",
        "the output is not a number everywhere",
        "fewer than 7 samples",
        "past output and input move together: a and b cannot be distinguished",
        "the output is constant",
        "",
    ]
    assert (
        fits.a[0]
        == fits.a[6]
        == pytest.approx(
            identify(*good, delay=0, align="next", whole_range=True, method="least squares").model.a[0]
        )
    )
    assert np.isnan(fits.a[1:6]).all()


def test_no_series_at_all() -> None:
    assert identify_many(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64)).a.size == 0
