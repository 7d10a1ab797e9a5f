"""Limits, filters, dither and smooth switching around any controller.

A wrapper is itself a controller: it has a field `inner`, and wrappers nest. From the outside in, the usual
order is limits around the controller and filters on its measurement::

    Saturation(Slew(DeadBand(Ewma(Pi(…)))))

Each wrapper that changes a command remembers what it let pass and, where the loop does not know what was
applied, reports that to the inner controller instead; so anti-windup works with or without an actuator that
reports back.
"""

from __future__ import annotations

from typing import Any

from flyball.control.controllers.catalogue import Entry, build, entry_of
from flyball.control.step import Controller, Value
from flyball.control.wrappers.bumpless import Bumpless
from flyball.control.wrappers.dead_band import DeadBand
from flyball.control.wrappers.dither import Dither
from flyball.control.wrappers.filtered import Ewma, Median
from flyball.control.wrappers.saturation import Saturation
from flyball.control.wrappers.slew import Slew
from flyball.errors import InvalidValue

__all__ = [
    "WRAPPERS",
    "Bumpless",
    "DeadBand",
    "Dither",
    "Ewma",
    "Median",
    "Saturation",
    "Slew",
    "describe_wrappers",
    "transfer",
    "wrap",
]

WRAPPERS: dict[str, type[Any]] = {
    "saturation": Saturation,
    "slew": Slew,
    "dead_band": DeadBand,
    "ewma": Ewma,
    "median": Median,
    "dither": Dither,
    "bumpless": Bumpless,
}


def wrap(name: str, inner: Controller[Any], **config: Any) -> Controller[Any]:
    """The controller `inner` inside the wrapper called `name`.

    >>> from flyball.control.controllers.pi import Pi
    >>> wrap("saturation", Pi(kp=1.0, ki=0.5), low=1.0, high=360.0)
    Saturation(inner=Pi(kp=1.0, ki=0.5), low=1.0, high=360.0)
    """
    if name not in WRAPPERS:
        raise InvalidValue(f"there is no wrapper {name!r}; there are: {', '.join(WRAPPERS)}")
    wrapped: Controller[Any] = build(WRAPPERS[name], f"wrapper {name!r}", {"inner": inner, **config})
    return wrapped


def describe_wrappers() -> tuple[Entry, ...]:
    """The wrappers as the catalogue describes controllers."""
    return tuple(entry_of(name, cls) for name, cls in WRAPPERS.items())


def transfer(new: Controller[Any], applied: Value) -> Any:
    """The state in which `new` takes over an actuator that stands at `applied` without a bump.

    This is how gains or the whole controller change while a loop runs: the old state is dropped, for nothing
    in it means the same under other gains; the actuator's position is all that must be continued from.
    Controllers that cannot start anywhere by themselves (P with a given bias, fixed) go inside `Bumpless`.

    >>> from flyball.control.controllers.pi import Pi
    >>> from flyball.control.step import Sample
    >>> pi = Pi(kp=5.0, ki=0.01)
    >>> _, action = pi.step(transfer(pi, 17.0), Sample(0.0, 1.0, setpoint=400.0, measurement=390.0))
    >>> round(action.command, 6)
    17.1
    """
    return new.initial(applied)
