from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controllers.fixed import Fixed
from flyball.control.controllers.lqr import Lqr
from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.step import Action, Controller, ReasonCode, Sample
from flyball.control.wrappers import (
    WRAPPERS,
    Bumpless,
    DeadBand,
    Dither,
    Ewma,
    Median,
    Saturation,
    Slew,
    transfer,
    wrap,
)
from flyball.control.wrappers.dither import DitherState, dither_step
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

PUBLISHED = Pi(kp=-0.0016, ki=0.0060)
A, B = 0.26, 59.73


def test_saturation_limits_and_says_so() -> None:
    limited = Saturation(Fixed(500.0), low=1.0, high=360.0)
    _, action = limited.step(limited.initial(10.0), Sample(0.0, 1.0, 1.0, 1.0))
    assert (action.command, action.saturated) == (360.0, 1)
    assert "limited to 360.0 (wanted 500.0)" in action.reason


class Says:
    """Asks for 500 in every sample, with a code of its own or without one."""

    def __init__(self, code: ReasonCode) -> None:
        self.code = code

    def initial(self, command: Any) -> Any:
        return command

    def step(self, state: Any, sample: Sample) -> Any:
        del sample
        return state, Action(500.0, reason="said" if self.code else "", code=self.code)


@pytest.mark.parametrize(
    ("wrapper", "code"),
    [
        (lambda inner: Saturation(inner, 1.0, 360.0), ReasonCode.SATURATED_HIGH),
        (lambda inner: Saturation(inner, 600.0, 700.0), ReasonCode.SATURATED_LOW),
        (lambda inner: Slew(inner, 1.0, 1.0), ReasonCode.SLEW_LIMITED),
        (lambda inner: Dither(inner), ReasonCode.UNSPECIFIED),
        (lambda inner: Bumpless(inner), ReasonCode.UNSPECIFIED),
    ],
)
def test_a_wrapper_keeps_the_code_of_its_controller(wrapper: Any, code: ReasonCode) -> None:
    for inner, expected in ((ReasonCode.STARVED, ReasonCode.STARVED), (ReasonCode.UNSPECIFIED, code)):
        wrapped = wrapper(Says(inner))
        _, action = wrapped.step(wrapped.initial(10.0), Sample(0.0, 1.0, 1.0, 1.0))
        assert action.code is expected


@pytest.mark.parametrize("report", [True, False])
def test_saturation_prevents_wind_up_whether_or_not_the_actuator_reports(report: bool) -> None:
    goals = [2000.0] * 200 + [400.0] * 40
    run = close_loop(Saturation(PUBLISHED, 1.0, 10.0), goals, a=A, b=B, command=1.0, report=report)
    assert run[199].applied == 10.0
    assert run[201].applied < 10.0
    assert run[-1].measurement == pytest.approx(400.0, rel=1e-3)


def test_limits_inside_limits_do_not_wind_up_either() -> None:
    goals = [2000.0] * 200 + [400.0] * 40
    nested = Slew(Saturation(Slew(PUBLISHED, rise=1.0), 1.0, 10.0), fall=2.0)
    run = close_loop(nested, goals, a=A, b=B, command=1.0, report=False)
    assert run[199].applied == 10.0
    assert run[201].applied < 10.0
    assert run[-1].measurement == pytest.approx(400.0, rel=1e-3)


def test_saturation_has_limits_for_each_actuator() -> None:
    limited = Saturation(Fixed((9.0, -9.0)), low=(0.0, -2.0), high=(4.0, 2.0))
    _, action = limited.step(limited.initial((1.0, 1.0)), Sample(0.0, 1.0, 1.0, 1.0))
    assert action.command == (4.0, -2.0)


@pytest.mark.parametrize(
    ("low", "high"), [(2.0, 1.0), (math.nan, 1.0), ((0.0, 5.0), 4.0), ((0.0, 0.0), (1.0, 1.0, 1.0))]
)
def test_saturation_refuses_limits_that_leave_nothing(low: Any, high: Any) -> None:
    with pytest.raises(InvalidValue, match=r"Saturation\.low"):
        Saturation(PUBLISHED, low, high)


def test_saturation_refuses_limits_of_another_shape() -> None:
    with pytest.raises(InvalidValue, match="must fit the command"):
        Saturation(PUBLISHED, (0.0, 0.0), (1.0, 1.0)).initial(3.0)


def test_slew_follows_the_applied_command() -> None:
    slow = Slew(Fixed(100.0), rise=5.0, fall=1.0)
    state, action = slow.step(slow.initial(0.0), Sample(0.0, 1.0, 1.0, 1.0))
    assert (action.command, action.saturated) == (5.0, 1)
    _, action = slow.step(state, Sample(1.0, 1.0, 1.0, 1.0, applied=40.0))
    assert action.command == 45.0


def test_dead_band_holds_inside_and_acts_outside() -> None:
    calm = DeadBand(Pi(0.0, 0.1), width=5.0)
    state = calm.initial(10.0)
    for y in (396.0, 404.0, 395.0):
        state, action = calm.step(state, Sample(0.0, 1.0, 400.0, y))
        assert action.command is None
    _, action = calm.step(state, Sample(0.0, 1.0, 400.0, 390.0))
    assert action.command == pytest.approx(11.0)  # the errors inside the band were not integrated


def test_dead_band_of_a_vector_needs_every_component_inside() -> None:
    calm = DeadBand(Fixed(), width=1.0)
    assert calm.step(calm.initial((1.0, 1.0)), Sample(0.0, 1.0, 0.0, (0.5, 0.9)))[1].command is None
    assert calm.step(calm.initial((1.0, 1.0)), Sample(0.0, 1.0, 0.0, (0.5, 1.1)))[1].command == (1.0, 1.0)


def _seen_by(wrapper: Controller[Any], measurements: list[Any]) -> list[Any]:
    """What the inner controller, a P with gain −1 around zero, answered: the measurements it saw."""
    state, seen = wrapper.initial(0.0), []
    for y in measurements:
        state, action = wrapper.step(state, Sample(0.0, 1.0, 0.0, y))
        seen.append(action.command)
    return seen


def test_ewma_smooths_what_the_controller_sees_and_bridges_gaps() -> None:
    seen = _seen_by(Ewma(P(-1.0, bias=0.0), keep=0.5), [8.0, None, 4.0, math.nan, 6.0])
    assert seen == [8.0, None, 6.0, None, 6.0]


def test_median_drops_outliers_from_what_the_controller_sees() -> None:
    seen = _seen_by(Median(P(-1.0, bias=0.0), size=3), [8.0, 8.0, 1e9, 9.0, None, 10.0])
    assert seen == [8.0, 8.0, 8.0, 9.0, None, 10.0]


def test_filters_work_on_vectors() -> None:
    eye = ((1.0, 0.0), (0.0, 1.0))
    zero = ((0.0, 0.0), (0.0, 0.0))
    wrappers: tuple[Controller[Any], ...] = (Ewma(Lqr(zero, eye), keep=0.5), Median(Lqr(zero, eye), size=2))
    for filtered in wrappers:
        state, _ = filtered.step(filtered.initial((0.0, 0.0)), Sample(0.0, 1.0, 0.0, (0.0, 4.0)))
        _, action = filtered.step(state, Sample(0.0, 1.0, 0.0, (2.0, 8.0)))
        assert action.command == pytest.approx((-1.0, -2.0))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_dither_never_owes_more_than_half_a_unit(wanted: list[float]) -> None:
    state, given_so_far, wanted_so_far = DitherState(), 0, 0.0
    for value in wanted:
        state, out = dither_step(state, value)
        given_so_far, wanted_so_far = given_so_far + out, wanted_so_far + value
        assert math.floor(value) <= out <= math.ceil(value)
        assert abs(wanted_so_far - given_so_far) <= 0.5 + 1e-6
        assert -0.5 <= state.residue <= 0.5


@given(st.floats(1.0, 360.0))
def test_mean_of_the_dither_tends_to_what_was_wanted(wanted: float) -> None:
    state, total = DitherState(), 0
    for _ in range(1000):
        state, out = dither_step(state, wanted)
        total += out
    assert total / 1000 == pytest.approx(wanted, abs=0.5 / 1000 + 1e-9)


@given(st.floats(1.0, 360.0), st.floats(-0.5, 0.5))
def test_dither_keeps_whole_numbered_limits(wanted: float, residue: float) -> None:
    _, out = dither_step(DitherState(residue), wanted)
    assert 1 <= out <= 360


def test_dither_does_not_stall_the_integral() -> None:
    """Steps of a tenth of a unit: rounding with tracking would erase each of them, dither does not."""
    dithered = Dither(Pi(kp=0.0, ki=0.0001))
    run = close_loop(dithered, [400.0] * 3000, a=A, b=B, command=4.0, measurement=300.0)
    tail = run[-1000:]
    assert {step.applied for step in tail} <= {4.0, 5.0, 6.0}
    assert sum(step.measurement for step in tail) / 1000 == pytest.approx(400.0, abs=1.0)


def test_dither_is_no_limit_to_the_controller_but_a_limit_is() -> None:
    """Wanted 10.3, given 10: the integral goes on from 10.3; where something else was applied, from that."""
    dithered = Dither(Pi(kp=0.0, ki=0.1))
    state, action = dithered.step(dithered.initial(10.0), Sample(0.0, 1.0, 3.0, 0.0))
    assert action.command == 10.0
    assert state.wanted == pytest.approx(10.3)
    after, _ = dithered.step(state, Sample(1.0, 1.0, 3.0, 0.0, applied=10.0))
    assert after.wanted == pytest.approx(10.6)
    after, _ = dithered.step(state, Sample(1.0, 1.0, 3.0, 0.0, applied=7.0))
    assert after.wanted == pytest.approx(7.3)


def test_dither_gives_a_finer_mean_than_rounding() -> None:
    wanted = 400.0 * (1.0 - A) / B  # 4.956 units
    assert abs(round(wanted) - wanted) * B / (1.0 - A) > 3.0
    run = close_loop(Dither(Fixed(wanted)), [400.0] * 2000, a=A, b=B, command=5.0, measurement=400.0)
    assert sum(step.measurement for step in run) / 2000 == pytest.approx(400.0, abs=0.2)


def test_dither_works_on_vectors() -> None:
    dithered = Dither(Fixed((1.5, -2.5)))
    state, totals = dithered.initial((1.0, -2.0)), [0.0, 0.0]
    for _ in range(100):
        state, action = dithered.step(state, Sample(0.0, 1.0, 0.0, 0.0))
        assert isinstance(action.command, tuple)
        assert all(u == int(u) for u in action.command)
        totals = [t + u for t, u in zip(totals, action.command, strict=True)]
    assert totals == pytest.approx([150.0, -250.0], abs=0.5)


def test_bumpless_starts_where_the_actuator_stands_and_fades() -> None:
    smooth = Bumpless(P(0.02, bias=0.0), fade=0.5)
    run = close_loop(smooth, [400.0] * 200, a=A, b=B, command=50.0, measurement=300.0)
    assert run[0].applied == 50.0
    bare = close_loop(P(0.02, bias=0.0), [400.0] * 200, a=A, b=B, command=50.0, measurement=300.0)
    assert abs(bare[0].applied - 50.0) > 40.0
    assert run[-1].measurement == pytest.approx(bare[-1].measurement, rel=1e-4)


def test_bumpless_does_not_look_like_a_limit_to_the_controller() -> None:
    """The integral moves by 1 a sample; the gap of 1 from the first one fades by half."""
    smooth = Bumpless(Pi(kp=0.0, ki=0.1), fade=0.5)
    state, first = smooth.step(smooth.initial(10.0), Sample(0.0, 1.0, 10.0, 0.0, applied=10.0))
    _, second = smooth.step(state, Sample(1.0, 1.0, 10.0, 0.0, applied=first.command))
    assert first.command == 10.0
    assert second.command == pytest.approx(12.0 - 0.5)


def test_bumpless_and_an_integral_get_on_with_each_other() -> None:
    run = close_loop(Bumpless(PUBLISHED), [400.0] * 80, a=A, b=B, command=20.0, measurement=1000.0)
    assert run[0].applied == 20.0
    assert run[-1].measurement == pytest.approx(400.0, rel=1e-4)


@given(st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.floats(1.0, 1e4))
def test_transfer_continues_without_a_jump(applied: float, measured: float, goal: float) -> None:
    new = Pi(kp=123.0, ki=0.001)
    _, action = new.step(transfer(new, applied), Sample(0.0, 1.0, goal, measured, applied))
    assert isinstance(action.command, float)
    assert abs(action.command - applied) <= 0.001 * abs(goal - measured) + 1e-6


def test_changing_gains_in_a_running_loop_does_not_bump() -> None:
    old, new = Pi(-0.0016, 0.006), Pi(0.05, 0.0001)
    last = close_loop(old, [400.0] * 5, a=A, b=B, command=1.0)[-1]
    sample = Sample(5.0, 1.0, 400.0, last.measurement, last.applied)
    _, action = new.step(transfer(new, last.applied), sample)
    assert action.command == pytest.approx(last.applied + 0.0001 * (400.0 - last.measurement))


def test_wrap_builds_by_name() -> None:
    assert wrap("slew", PUBLISHED, rise=2.0) == Slew(PUBLISHED, rise=2.0)
    with pytest.raises(InvalidValue, match="there is no wrapper 'slow'; there are: saturation"):
        wrap("slow", PUBLISHED)
    with pytest.raises(InvalidValue, match="wrapper 'ewma' needs keep"):
        wrap("ewma", PUBLISHED)


@pytest.mark.parametrize("name", list(WRAPPERS))
def test_refuses_an_inner_that_is_no_controller(name: str) -> None:
    config = {"saturation": {"low": 0.0, "high": 1.0}, "dead_band": {"width": 1.0}, "ewma": {"keep": 0.5}}
    with pytest.raises(InvalidValue, match="inner must be a controller"):
        wrap(name, "pi", **config.get(name, {}))  # type: ignore[arg-type]  # a user's mistake


def test_a_controller_that_asks_for_nan_never_reaches_the_actuator() -> None:
    class Broken:
        def initial(self, command: Any) -> Any:
            return command

        def step(self, state: Any, sample: Sample) -> Any:
            return state, Action(math.nan if sample.time % 2 else math.inf)

    rng = random.Random(1)
    for wrapper in (
        Saturation(Broken(), 0.0, 9.0),
        Slew(Broken(), 1.0, 1.0),
        Dither(Broken()),
        Bumpless(Broken()),
    ):
        state: Any = wrapper.initial(3.0)
        for k in range(4):
            state, action = wrapper.step(state, Sample(float(k), 1.0, 1.0, rng.random()))
            assert action.command is None
            assert action.code is ReasonCode.HELD_INVALID_COMMAND
