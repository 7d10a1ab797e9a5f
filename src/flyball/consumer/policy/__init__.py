"""Every decision of a consumer, pure: the live consumer and the twin run exactly these.

>>> from flyball.loops.policy import Observation, Policy, decide, start
>>> goal = parse_goal("rate=400")
>>> controller = regulator(goal)
>>> policy = Policy("orders", controller, limits=WINDOW_LIMITS, guard=guard_for(controller), glide=False)
>>> state, aiming, dithering = start(policy, FIRST_WINDOW), AimState(), DitherState()

Each second, from what was seen to the window that is wanted:

>>> seen = Seen(time_s=1.0, dt_s=1.0, rate_per_s=58.8, residence_s=0.017, used=1.0, depth=5000)
>>> aiming, target = aim(goal, aiming, seen)
>>> observed = Observation(seen.time_s, target.setpoint, target.measurement, None, target.disturbances)
>>> state, record = decide(policy, state, observed)
>>> round(record.command, 2)
6.8

Every `DITHER_S`, whole windows whose mean it is:

>>> dithering, whole = dither_step(dithering, record.command)
>>> whole
7
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

from flyball.consumer.policy.goals import (
    RESIDENCE_S,
    AimState,
    Capacity,
    ConsumerDisturbances,
    DrainBy,
    Goal,
    Latency,
    Look,
    Rate,
    Seen,
    Target,
    aim,
    disturbances_of,
    lacks_messages,
    parse_goal,
    published_per_s,
    residence_of,
    used_share,
)
from flyball.consumer.policy.knee import Knee
from flyball.consumer.policy.little import Little, default_trim
from flyball.consumer.policy.retry import RetryPolicy
from flyball.consumer.policy.starvation import HoldWhenStarved
from flyball.control.controllers import catalogue
from flyball.control.guard.guard import Guard
from flyball.control.step import Controller
from flyball.control.wrappers.dither import DitherState, dither_step
from flyball.errors import InvalidValue

__all__ = [
    "DITHER_S",
    "FIRST_WINDOW",
    "RESIDENCE_S",
    "WINDOW_LIMITS",
    "AimState",
    "Capacity",
    "ConsumerDisturbances",
    "DitherState",
    "DrainBy",
    "Goal",
    "Knee",
    "Latency",
    "Little",
    "Look",
    "Rate",
    "Regulator",
    "RetryPolicy",
    "Seen",
    "Target",
    "aim",
    "default_trim",
    "disturbances_of",
    "dither_step",
    "guard_for",
    "lacks_messages",
    "parse_goal",
    "published_per_s",
    "regulator",
    "residence_of",
    "used_share",
]

DITHER_S = 0.05
"""How often the window is set: whole numbers whose mean is what the loop wants."""
FIRST_WINDOW = 1.0
"""Where a consumer begins: one message at a time tells the residence time, and cannot overshoot by much."""
WINDOW_LIMITS = (0.05, 2000.0)
"""Below 1 the window is closed for part of the time; at its end one message a second still passes."""

Regulator: TypeAlias = str | Mapping[str, Any] | Controller[Any] | None


def regulator(goal: Goal, wanted: Regulator = None) -> Controller[Any]:
    """The controller of a goal: the default, one of the catalogue by name or config, or your own object.

    >>> type(regulator(Rate(400.0))).__name__, type(regulator(Capacity())).__name__
    ('Little', 'Knee')
    >>> regulator(Rate(400.0), {"name": "pi", "kp": -0.0016, "ki": 0.006})
    HoldWhenStarved(inner=Pi(kp=-0.0016, ki=0.006))
    >>> regulator(Capacity(), "pi")
    Traceback (most recent call last):
        ...
    flyball.errors.InvalidValue: the goal capacity has its own law: leave the controller out, got 'pi'
    """
    if isinstance(goal, Capacity | Latency):
        if wanted is not None:
            raise InvalidValue(f"the goal {goal} has its own law: leave the controller out, got {wanted!r}")
        return Knee(goal.headroom) if isinstance(goal, Capacity) else Knee(p95_s=goal.p95_s)
    if wanted is None:
        return Little()
    if isinstance(wanted, str):
        return Little() if wanted == "little" else HoldWhenStarved(catalogue.make(wanted))
    if isinstance(wanted, Mapping):
        config = {key: value for key, value in wanted.items() if key != "name"}
        name = wanted.get("name")
        if not isinstance(name, str):
            raise InvalidValue(f"a controller's config has a name, such as 'pi' or 'little', got {dict(wanted)!r}")
        return _little(config) if name == "little" else HoldWhenStarved(catalogue.make(name, **config))
    if isinstance(wanted, Controller):
        return wanted if isinstance(wanted, Little | Knee | HoldWhenStarved) else HoldWhenStarved(wanted)
    raise InvalidValue(f"a controller is a name, a config with a name, or an object, got {wanted!r}")


def _little(config: Mapping[str, Any]) -> Controller[Any]:
    """`little` from a config file: its trim is written as the gains kp and ki."""
    rest = dict(config)
    gains = {name: rest.pop(name) for name in ("kp", "ki") if name in rest}
    if gains:
        rest["inner"] = catalogue.make("pi", **{"kp": 0.0, **gains})
    made: Controller[Any] = catalogue.build(Little, "controller 'little'", rest)
    return made


def guard_for(controller: Controller[Any]) -> Guard:
    """The guard of a consumer's loop.

    Our own regulators notice by themselves that the window has no effect, hold it and try again; freezing
    them would only keep them from that. Any other controller is frozen, with the reason.
    """
    named = functools.partial(Guard, measurement_name="the rate", command_name="the window")
    if isinstance(controller, Little):
        return named(on_lost="ignore", on_inverted="alert", on_stale="alert", on_oscillation="alert")
    if isinstance(controller, Knee):  # its set point is its measurement: only a missing metric can be wrong
        return named(tolerance=1e9, on_stale="ignore", on_saturated="ignore")
    return named(on_stale="alert")
