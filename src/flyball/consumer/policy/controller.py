"""The controller and the guard of a goal, and the numbers that a consumer's window starts from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from flyball.consumer.policy.goals import Capacity, Goal, Latency
from flyball.consumer.policy.knee import Knee
from flyball.consumer.policy.little import Little
from flyball.consumer.policy.profiles import ProfileScheduled
from flyball.consumer.policy.starvation import HoldWhenStarved
from flyball.control.controllers import catalogue
from flyball.control.guard.guard import Guard
from flyball.control.step import Controller
from flyball.errors import InvalidValue

DITHER_S = 0.05
"""How often the window is set: to whole numbers whose mean is the command."""
FIRST_WINDOW = 1.0
"""Where a consumer begins: one message at a time shows the residence time, and cannot overshoot by much."""
WINDOW_LIMITS = (0.05, 2000.0)
"""Below 1 the window is closed for part of the time; at its end one message a second still passes."""

ControllerOption: TypeAlias = str | Mapping[str, Any] | Controller[Any] | None


@functools.cache
def _with_set_point() -> tuple[type[Any], ...]:
    return tuple(catalogue.class_of(entry.name) for entry in catalogue.describe())


def make_controller(goal: Goal, option: ControllerOption = None) -> Controller[Any]:
    """Make the controller of a goal: the default, one of the catalogue by name or config, or your own object.

    Capacity and latency have no set point that a controller of the catalogue could follow.

    >>> from flyball.consumer.policy.goals import Rate
    >>> type(make_controller(Rate(400.0))).__name__, type(make_controller(Capacity())).__name__
    ('Little', 'Knee')
    >>> make_controller(Rate(400.0), {"name": "pi", "kp": -0.0016, "ki": 0.006})
    HoldWhenStarved(inner=Pi(kp=-0.0016, ki=0.006))
    >>> make_controller(Capacity(), "pi")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the goal capacity has its own controller: leave out controller, got 'pi'
    """
    if isinstance(goal, Capacity | Latency):
        if isinstance(option, Controller) and not isinstance(option, (ProfileScheduled, *_with_set_point())):
            return option
        if option is not None:
            raise InvalidValue(f"the goal {goal} has its own controller: leave out controller, got {option!r}")
        return Knee(goal.headroom) if isinstance(goal, Capacity) else Knee(p95_s=goal.p95_s)
    if option is None:
        return Little()
    if isinstance(option, str):
        return Little() if option == "little" else HoldWhenStarved(catalogue.make(option))
    if isinstance(option, Mapping):
        config = {key: value for key, value in option.items() if key != "name"}
        name = option.get("name")
        if not isinstance(name, str):
            raise InvalidValue(f"a controller's config must have a name such as 'pi', got {dict(option)!r}")
        return _little(config) if name == "little" else HoldWhenStarved(catalogue.make(name, **config))
    if isinstance(option, Controller):
        return option if isinstance(option, Little | Knee | HoldWhenStarved) else HoldWhenStarved(option)
    raise InvalidValue(f"controller must be a name, a config with a name or a controller object, got {option!r}")


def _little(config: Mapping[str, Any]) -> Controller[Any]:
    """Make `little` from a config file, which writes its trim as the gains kp and ki."""
    rest = dict(config)
    gains = {name: rest.pop(name) for name in ("kp", "ki") if name in rest}
    if gains:
        rest["inner"] = catalogue.make("pi", **{"kp": 0.0, **gains})
    controller: Controller[Any] = catalogue.build(Little, "controller 'little'", rest)
    return controller


def guard_for(controller: Controller[Any]) -> Guard:
    """Make the guard of a consumer's loop.

    `Little` and `Knee` detect that the window has no effect, hold it and try again; a frozen loop could not try
    again as often. Any other controller is stopped, with the reason, until the rate is back.
    """
    named = functools.partial(Guard, measurement_name="the rate", command_name="the window")
    if isinstance(controller, Little):
        return named(on_lost="ignore", on_inverted="alert", on_stale="alert", on_oscillation="alert")
    if isinstance(controller, Knee):  # its set point is its measurement: only a missing metric is a fault
        return named(tolerance=1e9, on_stale="ignore", on_saturated="ignore")
    return named(on_stale="alert")
