from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flyball.control.controllers.gain_scheduled import GainScheduled, Region
from flyball.control.controllers.pi import Pi
from flyball.control.step import Sample
from flyball.errors import InvalidValue
from flyball.testing.closed_loop import close_loop

SLOW, FAST = Region(0.0, kp=3.0, ki=0.01), Region(500.0, kp=-2.0, ki=0.05)


def test_one_region_is_its_pi() -> None:
    one = GainScheduled((Region(0.0, 0.001, 0.004),))
    ours, pi = (close_loop(c, [400.0] * 30, a=0.26, b=59.73) for c in (one, Pi(0.001, 0.004)))
    assert [s.applied for s in ours] == pytest.approx([s.applied for s in pi])


@pytest.mark.parametrize(("load", "move"), [(-5.0, 0.1), (499.0, 0.1), (500.0, 0.5), (1e9, 0.5)])
def test_chooses_the_region_by_the_disturbance(load: float, move: float) -> None:
    loop = GainScheduled((SLOW, FAST), by="disturbance", index=1)
    _, action = loop.step(loop.initial(10.0), Sample(0.0, 1.0, 400.0, 390.0, None, (1e6, load)))
    assert action.command == pytest.approx(10.0 + move)


@pytest.mark.parametrize("number", [float, int, np.int64, np.float32])
def test_any_kind_of_number_chooses_the_region(number: Any) -> None:
    loop = GainScheduled((SLOW, FAST))
    state, _ = loop.step(loop.initial(10.0), Sample(0.0, 1.0, number(600), 590.0))
    assert state.region == 1


def test_switch_does_not_bump() -> None:
    """Kp jumps from 3 to −2 with an error of 10: the command moves by the new integral step alone."""
    loop = GainScheduled((SLOW, FAST))
    state, before = loop.step(loop.initial(10.0), Sample(0.0, 1.0, 400.0, 390.0))
    _, after = loop.step(state, Sample(1.0, 1.0, 600.0, 590.0, applied=before.command))
    assert isinstance(before.command, float)
    assert after.command == pytest.approx(before.command + 0.05 * 10.0)


def test_hysteresis_keeps_the_region_at_its_border() -> None:
    loop = GainScheduled((SLOW, FAST), hysteresis=20.0)
    state, regions = loop.initial(10.0), []
    for goal in (400.0, 510.0, 521.0, 490.0, 479.0):
        state, _ = loop.step(state, Sample(0.0, 1.0, goal, goal))
        regions.append(state.region)
    assert regions == [0, 0, 1, 1, 0]


def test_keeps_its_region_while_the_disturbance_is_missing() -> None:
    loop = GainScheduled((SLOW, FAST), by="disturbance")
    state, _ = loop.step(loop.initial(10.0), Sample(0.0, 1.0, 400.0, 390.0, None, (900.0,)))
    for missing in ((), (math.nan,)):
        state, _ = loop.step(state, Sample(0.0, 1.0, 400.0, 390.0, None, missing))
        assert state.region == 1


def test_refuses_regions_out_of_order() -> None:
    with pytest.raises(InvalidValue, match="rising"):
        GainScheduled((FAST, SLOW))
