"""Batch identification: recovers what made the data, and says how far to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.identification.identify import Fit, evaluate, identify, predict
from flyball.control.identification.residuals import whiteness
from flyball.control.identification.signals import Limits, prbs, staircase
from flyball.control.models import Array, Arx, first_order
from flyball.errors import InvalidValue

RAMP = Path(__file__).parents[4] / "shared" / "data" / "rabbitmq-ramp.csv"


def respond(model: Arx, u: Array, noise: Array, *, align: str = "next", start: float = 0.0) -> Array:
    """Rows of y for rows of u, noise entering the model's equation as least squares assumes."""
    lag = model.delay + (align == "next")
    y = np.full(u.size, start)
    for k in range(len(model.a), u.size):
        past = sum(a * y[k - 1 - i] for i, a in enumerate(model.a))
        drive = sum(b * u[max(0, k - lag - j)] for j, b in enumerate(model.b))
        y[k] = past + drive + model.offset + noise[k]
    return y


def random_input(seed: int, samples: int, low: int = 1, high: int = 22, hold: int = 2) -> Array:
    random = np.random.default_rng(seed)
    return np.repeat(random.integers(low, high + 1, samples // hold + 1), hold)[:samples].astype(float)


def prefetch_recording(seed: int = 3, samples: int = 400) -> tuple[Array, Array]:
    u = random_input(seed, samples)
    noise = np.random.default_rng(seed + 1).normal(0.0, 60.0, samples)
    return u, respond(first_order(0.26, 59.73), u, noise)


# ── The closed form of the prefetch paper, and its misprint ────────────────────────────────────────


def closed_form(u: Array, y: Array, *, fifth: float) -> tuple[float, float]:
    yy, uy, uu = float(y[:-1] @ y[:-1]), float(u[:-1] @ y[:-1]), float(u[:-1] @ u[:-1])
    yy_next = float(y[:-1] @ y[1:])
    determinant = yy * uu - uy * uy
    return (uu * yy_next - uy * fifth) / determinant, (yy * fifth - uy * yy_next) / determinant


def test_prefetch_sums_with_the_corrected_fifth_agree_with_least_squares() -> None:
    u, y = prefetch_recording()
    a, b = closed_form(u, y, fifth=float(u[:-1] @ y[1:]))
    fit = identify(u, y, align="next", delay=0, offset=False, whole_range=True)
    assert fit.model.a[0] == pytest.approx(a, rel=1e-9)
    assert fit.model.b[0] == pytest.approx(b, rel=1e-9)
    assert (fit.model.offset, "c" in fit.confidence) == (0.0, False)
    assert a == pytest.approx(0.26, abs=0.03)
    assert b == pytest.approx(59.73, abs=2.0)


def test_prefetch_sums_as_printed_give_a_wrong_model() -> None:
    u, y = prefetch_recording()
    a, b = closed_form(u, y, fifth=float(u[:-1] @ u[1:]))
    wrong = evaluate(first_order(a, b), u, y)
    right = identify(u, y, align="next", delay=0, offset=False, whole_range=True)
    assert abs(b - 59.73) > 30.0
    assert wrong.r2 < 0.5 < 0.8 < right.r2


# ── recovery ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    a=st.floats(-0.9, 0.97),
    b=st.floats(0.1, 200.0),
    sign=st.sampled_from([-1.0, 1.0]),
    c=st.floats(-500.0, 500.0),
    delay=st.integers(0, 5),
    align=st.sampled_from(["same", "next"]),
    seed=st.integers(0, 2**20),
)
def test_recovers_random_models_without_noise(
    a: float, b: float, sign: float, c: float, delay: int, align: str, seed: int
) -> None:
    model = first_order(a, sign * b, delay, c)
    u = random_input(seed, 200, hold=1)
    fit = identify(u, respond(model, u, np.zeros(200), align=align), align=align, delay="auto")  # type: ignore[arg-type]  # sampled
    assert fit.model.delay == delay
    assert fit.align == align
    assert fit.model.a[0] == pytest.approx(a, abs=1e-6)
    assert fit.model.b[0] == pytest.approx(sign * b, rel=1e-6)
    assert fit.model.offset == pytest.approx(c, abs=1e-4 * (1.0 + abs(c) + b))
    assert fit.r2 == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("delay", [0, 1, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_delay_found_by_information_criterion_under_noise(delay: int, seed: int) -> None:
    u = random_input(seed, 400, hold=3)
    noise = np.random.default_rng(seed + 100).normal(0.0, 80.0, 400)
    fit = identify(u, respond(first_order(0.5, 40.0, delay, 100.0), u, noise), align="next")
    assert fit.model.delay == delay, f"seed {seed}"


@pytest.mark.parametrize("align", ["same", "next"])
@pytest.mark.parametrize("delay", ["auto", 0, 2])
def test_alignment_found(align: str, delay: Any) -> None:
    true_delay = 0 if delay == "auto" else delay
    u = random_input(5, 300)
    noise = np.random.default_rng(6).normal(0.0, 50.0, 300)
    fit = identify(u, respond(first_order(0.4, 30.0, true_delay), u, noise, align=align), delay=delay)
    assert (fit.align, fit.model.delay) == (align, true_delay)


def test_two_outputs_and_two_inputs() -> None:
    model = Arx((1.1, -0.4), (5.0, 2.5), delay=1, offset=7.0)
    u = random_input(7, 3000, hold=1)
    y = respond(model, u, np.random.default_rng(8).normal(0.0, 1.0, 3000))
    fit = identify(u, y, na=2, nb=2)
    assert fit.model.delay == 1
    assert fit.model.a == pytest.approx(model.a, abs=0.02)
    assert fit.model.b == pytest.approx(model.b, abs=0.05)
    assert set(fit.confidence) == {"a1", "a2", "b1", "b2", "c"}
    assert fit.covariance.shape == (5, 5)


def test_large_means_and_long_ramps_do_not_spoil_the_numerics() -> None:
    u = random_input(9, 500) + 1e7
    y = respond(
        first_order(0.3, 2.0, offset=5e8), u, np.random.default_rng(10).normal(0.0, 1e-2, 500), start=7.4e8
    )
    fit = identify(u[50:], y[50:], align="next", delay=0)
    assert fit.model.a[0] == pytest.approx(0.3, abs=1e-3)
    assert fit.model.b[0] == pytest.approx(2.0, abs=1e-3)


def test_agrees_with_a_plain_least_squares_call() -> None:
    u, y = prefetch_recording(seed=11)
    fit = identify(u, y, align="next", delay=0, whole_range=True)
    regressors = np.column_stack([y[:-1], u[:-1], np.ones(u.size - 1)])
    theta, rss, _, _ = np.linalg.lstsq(regressors, y[1:], rcond=None)
    assert (*fit.model.a, *fit.model.b, fit.model.offset) == pytest.approx(tuple(theta), rel=1e-9)
    expected = float(rss[0]) / (u.size - 1 - 3) * np.linalg.inv(regressors.T @ regressors)
    assert fit.covariance == pytest.approx(expected, rel=1e-6)
    assert fit.rmse == pytest.approx(float(np.sqrt(rss[0] / (u.size - 1))), rel=1e-9)


# ── evidence ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_confidence_intervals_cover_as_often_as_they_say() -> None:
    true = {"a": 0.4, "b": 30.0, "c": 50.0}
    hits = dict.fromkeys(true, 0)
    runs = 400
    for seed in range(runs):
        u = random_input(seed, 150)
        y = respond(
            first_order(0.4, 30.0, 0, 50.0), u, np.random.default_rng(10_000 + seed).normal(0.0, 90.0, 150)
        )
        fit = identify(u[10:], y[10:], align="next", delay=0, whole_range=True)
        for name, (low, high) in fit.confidence.items():
            hits[name] += low <= true[name] <= high
    for name, count in hits.items():
        # nominal 0.95; four standard deviations of a binomial share of 400 are 0.044
        assert 0.90 < count / runs < 0.99, f"{name}: {count} of {runs}"


def test_white_residuals_pass_and_coloured_ones_fail() -> None:
    random = np.random.default_rng(12)
    rows = np.arange(500)
    passed = sum(whiteness(random.normal(size=500), rows, fitted=1, scale=1.0).white for _ in range(200))
    assert passed > 190
    for _ in range(20):
        noise = random.normal(size=501)
        assert not whiteness(noise[1:] + 0.5 * noise[:-1], rows, fitted=1, scale=1.0).white


def test_whiteness_counts_only_neighbouring_rows() -> None:
    """Two coloured stretches far apart are as suspicious as one; the gap between them adds nothing."""
    random = np.random.default_rng(13)
    noise = random.normal(size=301)
    coloured = noise[1:] + 0.8 * noise[:-1]
    with_gap = np.concatenate([np.arange(150), np.arange(100_000, 100_150)])
    assert not whiteness(coloured, with_gap, fitted=1, scale=1.0).white
    every_other = np.arange(0, 2_000, 20)  # no pair of rows is near enough to correlate
    assert whiteness(coloured[:100], every_other, fitted=1, scale=1.0).white


def test_a_missing_delay_shows_in_the_residuals() -> None:
    u = random_input(14, 600, hold=4)
    y = respond(first_order(0.6, 20.0, delay=3), u, np.random.default_rng(15).normal(0.0, 10.0, 600))
    good, bad = identify(u, y), identify(u, y, delay=0, align="next", whole_range=True)
    assert good.residuals_white
    assert not bad.residuals_white
    assert any("not white" in warning for warning in bad.warnings)


def test_free_run_equals_simulation() -> None:
    u, y = prefetch_recording(seed=16)
    fit = identify(u, y, align="next", delay=0, whole_range=True)
    simulated = fit.model.simulate(u[:-1], initial=float(y[0]))
    spread = float(np.square(y[1:] - y[1:].mean()).sum())
    assert fit.r2_free_run == pytest.approx(1.0 - float(np.square(y[1:] - simulated).sum()) / spread, rel=1e-9)
    assert predict(fit, u, y)[2] == pytest.approx(simulated)
    assert fit.r2_free_run < fit.r2


def test_train_and_test() -> None:
    fit = identify(*prefetch_recording(seed=17))
    score = fit.evaluate(*prefetch_recording(seed=18))
    assert score.r2 > 0.9
    assert score.rmse == pytest.approx(60.0, rel=0.2)
    other = prefetch_recording(seed=19)
    assert evaluate(first_order(0.26, 20.0), *other).r2 < fit.evaluate(*other).r2


# ── linear range ───────────────────────────────────────────────────────────────────────────────────────────────


def saturating(u: Array, seed: int, noise: float = 20.0, limit: float = 22.0) -> Array:
    return respond(
        first_order(0.26, 59.73), np.minimum(u, limit), np.random.default_rng(seed).normal(0.0, noise, u.size)
    )


def staircase_to_40(hold: int) -> Array:
    return staircase(range(1, 41), Limits(1.0, 40.0, hold=hold))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["staircase", "random"])
def test_linear_to_22_then_saturated(kind: str, seed: int) -> None:
    u = staircase_to_40(10) if kind == "staircase" else random_input(seed, 400, 1, 40)
    fit = identify(u, saturating(u, seed))
    assert fit.linear_range[0] == 1.0
    assert fit.linear_range[1] == pytest.approx(22.0, abs=2.0), f"seed {seed}"
    assert fit.model.a[0] == pytest.approx(0.26, abs=0.12)
    assert fit.model.gain == pytest.approx(59.73 / 0.74, rel=0.05)
    assert any("linear only" in warning for warning in fit.warnings)
    whole = identify(u, saturating(u, seed), whole_range=True)
    assert abs(whole.model.gain - 80.7) > abs(fit.model.gain - 80.7)


def test_dead_zone_is_cut_off_below() -> None:
    u = random_input(20, 600, 0, 30)
    y = respond(first_order(0.3, 10.0), np.maximum(u, 12.0), np.random.default_rng(21).normal(0.0, 8.0, 600))
    fit = identify(u, y)
    assert fit.linear_range[0] == pytest.approx(12.0, abs=2.0)
    assert fit.linear_range[1] == 30.0
    assert fit.model.b[0] == pytest.approx(10.0, rel=0.1)


def test_a_linear_plant_keeps_its_whole_range() -> None:
    kept = 0
    for seed in range(40):
        u = random_input(seed, 300, 1, 40)
        fit = identify(
            u, respond(first_order(0.5, 10.0, 0, 3.0), u, np.random.default_rng(seed).normal(0, 20, 300))
        )
        kept += fit.linear_range == (u.min(), u.max())
    assert kept >= 38


@pytest.mark.parametrize("limit", range(10, 16))
def test_a_short_linear_start_of_a_plain_ramp(limit: int) -> None:
    """Hardly a row inside the range is late enough to have the earlier inputs that a long delay needs."""
    u = np.arange(1.0, 61.0)
    fit = identify(u, saturating(u, seed=27, noise=3.0, limit=float(limit)))
    assert fit.linear_range[0] == 1.0
    assert fit.linear_range[1] == pytest.approx(limit, abs=1.0)


def test_a_linear_start_too_short_to_fit_is_said() -> None:
    u = np.arange(1.0, 61.0)
    # The rows are aligned as in the prefetch paper (`next`); a ramp does not show it, so `same` is used, one input
    # late.
    fit = identify(u, saturating(u, seed=27, noise=3.0, limit=7.0))
    assert fit.linear_range == (1.0, 60.0)
    assert any("inputs from 1 to 8, where there are too few" in warning for warning in fit.warnings)


def test_range_of_a_long_recording() -> None:
    u = random_input(22, 200_000, 1, 40)
    random = np.random.default_rng(23)
    y = 80.0 * np.minimum(np.concatenate([[1.0], u[:-1]]), 22.0) + random.normal(0.0, 50.0, u.size)
    fit = identify(u, y)
    assert fit.linear_range[0] == 1.0
    assert fit.linear_range[1] == pytest.approx(22.0, abs=1.0)
    assert fit.model.b[0] == pytest.approx(80.0, rel=0.01)


@pytest.mark.skipif(not RAMP.exists(), reason="the public recording is not beside this checkout")
def test_public_ramp() -> None:
    u, y = np.loadtxt(RAMP, delimiter=",", skiprows=1).T
    fit = identify(u, y)
    low, high = fit.linear_range
    assert low == 1.0
    assert 10.0 <= high <= 40.0
    assert fit.align == "same"
    assert 0.0 < fit.model.a[0] < 1.0
    assert fit.confidence["b"][0] > 0.0
    assert fit.r2 > 0.9
    assert fit.r2_free_run > 0.9
    # A ramp by ones looks the same one row later: alignment cannot be told, and that is said.
    assert any("as well" in warning for warning in fit.warnings)


# ── doubts and errors ──────────────────────────────────────────────────────────────────────────────────────────


def warned(fit: Fit, words: str) -> bool:
    return any(words in warning for warning in fit.warnings)


def test_insignificant_and_unstable_fits_are_results() -> None:
    random = np.random.default_rng(24)
    u = random_input(25, 200)
    nothing = identify(u, random.normal(size=200))
    assert warned(nothing, "no significant effect")
    assert warned(nothing, "no significant memory")
    assert warned(nothing, "should reach 0.8")
    growing = identify(u[:60], respond(first_order(1.05, 1.0), u[:60], np.zeros(60)), align="next", delay=0)
    assert warned(growing, "unstable")
    assert growing.model.a[0] == pytest.approx(1.05)
    sound = identify(*prefetch_recording())
    assert sound.warnings == ()


def test_collinear_data_are_a_result_with_a_warning() -> None:
    u = np.arange(1.0, 41.0)
    fit = identify(u, 3.0 * u + 5.0)
    assert warned(fit, "cannot be distinguished")
    assert np.isfinite([*fit.model.a, *fit.model.b]).all()
    assert fit.confidence["a"] == (-np.inf, np.inf)


@pytest.mark.parametrize(
    ("u", "y", "words"),
    [
        (np.full(50, 7.0), np.arange(50.0), "input is constant (7 in all 50 samples)"),
        (np.arange(50.0), np.full(50, 3.0), "output is constant"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], "3 samples are too few"),
        ([], [], "0 samples are too few"),
        ([1.0, float("nan"), *range(30)], np.arange(32.0), "input is nan in sample 2"),
        (np.arange(32.0), [1.0, 2.0, float("inf"), *range(29)], "output is inf in sample 3"),
        (np.arange(9.0), np.arange(10.0), "shapes (9,) and (10,)"),
    ],
)
def test_data_that_hold_no_answer(u: Any, y: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as error:
        identify(u, y)
    assert words in str(error.value)


@pytest.mark.parametrize("options", [{"delay": -1}, {"align": "left"}, {"na": 0}, {"confidence_level": 1.0}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        identify(*prefetch_recording(), **options)


numbers = st.floats(-1e9, 1e9, width=32) | st.integers(-3, 3).map(float)


@given(
    data=st.data(), samples=st.integers(0, 60), offset=st.booleans(), na=st.integers(1, 2), nb=st.integers(1, 2)
)
def test_any_data_give_a_fit_or_one_sentence(
    data: st.DataObject, samples: int, offset: bool, na: int, nb: int
) -> None:
    shapes = {
        "free": st.lists(numbers, min_size=samples, max_size=samples),
        "ramp": st.just([float(k) for k in range(samples)]),
        "step": st.integers(0, samples).map(lambda at: [float(k >= at) for k in range(samples)]),
        "bent": st.integers(0, samples).map(lambda at: [float(min(k, at)) for k in range(samples)]),
        "growing": st.floats(0.0, 4.0).map(lambda rate: [float(np.exp(rate * k)) for k in range(samples)]),
    }
    u, y = (data.draw(shapes[data.draw(st.sampled_from(sorted(shapes)))]) for _ in range(2))
    delay: Any = data.draw(st.sampled_from(["auto", 0, 2]))
    align: Any = data.draw(st.sampled_from(["auto", "same", "next"]))
    try:
        fit = identify(u, y, na=na, nb=nb, offset=offset, delay=delay, align=align)
    except InvalidValue:
        return
    assert fit.linear_range[0] < fit.linear_range[1]
    assert np.isfinite(fit.covariance).all()
    assert fit.r2 <= 1.0
    assert len(fit.confidence) == na + nb + int(offset) == len(fit.covariance)


@pytest.mark.parametrize("align", ["auto", "same", "next"])
@pytest.mark.parametrize("moves", [0, 1, 2, 3])
@pytest.mark.parametrize("offset", [False, True])
def test_data_that_move_only_at_the_very_end_give_a_fit_or_one_sentence(
    align: Any, moves: int, offset: bool
) -> None:
    """Every regressor is 0 where input and output begin to move with the last sample."""
    for shift in range(4):
        u = [float(k >= 52 - moves) for k in range(52)]
        y = [float(k >= 52 - max(0, moves - shift)) for k in range(52)]
        try:
            fit = identify(u, y, offset=offset, align=align)
        except InvalidValue:
            continue
        assert np.isfinite(fit.covariance).all()


def test_prbs_excites_enough_to_identify() -> None:
    u = prbs(300, 12.0, 4.0, Limits(1.0, 22.0, hold=2), seed=5)
    y = respond(first_order(0.26, 59.73), u, np.random.default_rng(26).normal(0.0, 40.0, 300))
    fit = identify(u[5:], y[5:])
    assert fit.model.b[0] == pytest.approx(59.73, rel=0.05)
