"""`check_controller`: every promise of the controller contract, tried on any controller, yours or the catalogue's.

Pass it a controller in a test; it raises AssertionError with one sentence where a promise is broken. It needs
no plant model: the samples are made up, and so are the ways in which they are bad.

>>> from flyball.control.controllers.pi import Pi
>>> from flyball.control.wrappers import Saturation
>>> check_controller(Saturation(Pi(kp=-0.0016, ki=0.006), low=1.0, high=360.0), limits=(1.0, 360.0))
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import random
from collections.abc import Iterator
from typing import Any

from flyball.control.state import from_plain, to_plain
from flyball.control.step import Action, Controller, Disturbances, Sample, Value, is_usable

_NOT_NUMBERS = (math.nan, math.inf, -math.inf)


def check_controller(
    controller: Controller[Any],
    *,
    command: Value = 10.0,
    setpoint: Value = 400.0,
    limits: tuple[float, float] | None = None,
    disturbances: tuple[float, ...] = (),
    first_move: float = 0.0,
    samples: int = 200,
    seed: int = 1,
) -> None:
    """Raise AssertionError where `controller` breaks a promise of the contract in `flyball.control.step`.

    `command` and `setpoint` show the shapes (a tuple for several) and a sensible working point. `limits` are
    those that every command must keep. `first_move` is how far the first command may lie from `command` when
    there is no error; `math.inf` for controllers that do not start at the applied command.
    """
    _check_configuration(controller)
    _check_start(controller, command, setpoint, disturbances, first_move)
    state = controller.initial(command)
    applied: Value | None = command
    for number, sample in enumerate(_samples(random.Random(seed), setpoint, disturbances, samples)):
        where = f"{controller!r}, sample {number} of seed {seed}: {sample}"
        if sample.applied is None and number % 3:
            sample = dataclasses.replace(sample, applied=applied)
        before = _stored(state, where)
        after, action = _step(controller, state, sample, where)
        again, same = _step(controller, state, sample, where)
        assert _stored(state, where) == before, f"step changed the state that it was given ({where})"
        assert _stored(after, where) == _stored(again, where), f"two equal steps gave other states ({where})"
        assert _text(action) == _text(same), f"two equal steps gave other actions ({where})"
        _check_action(action, sample, command, limits, where)
        _check_restored(controller, state, sample, (after, action), command, where)
        state = after
        applied = applied if action.command is None else action.command
    _check_recovers(controller, command, setpoint, disturbances)


def _check_configuration(controller: Any) -> None:
    what = repr(controller)
    assert callable(getattr(controller, "initial", None)), f"{what} has no method initial"
    assert callable(getattr(controller, "step", None)), f"{what} has no method step"
    assert dataclasses.is_dataclass(controller), f"{what} is not a dataclass: its configuration cannot be listed"
    for field in dataclasses.fields(controller):
        try:
            setattr(controller, field.name, getattr(controller, field.name))
        except (AttributeError, TypeError):
            continue
        raise AssertionError(f"{what} is not frozen: {field.name} can be set")
    try:
        hash(controller)
    except TypeError as error:
        raise AssertionError(f"{what} cannot be hashed: {error}") from None
    assert copy.deepcopy(controller) == controller, f"{what} does not equal its copy"
    try:
        copied = pickle.loads(pickle.dumps(controller))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise AssertionError(f"{what} cannot be pickled: {error}") from None
    assert copied == controller, f"{what} is another controller after pickling: {copied!r}"


def _check_start(
    controller: Controller[Any], command: Value, setpoint: Value, disturbances: tuple[float, ...], allowed: float
) -> None:
    where = f"{controller!r}, first sample"
    sample = Sample(0.0, 1.0, setpoint, setpoint, command, disturbances)
    _, action = _step(controller, controller.initial(command), sample, where)
    if action.command is None:
        return
    numbers, starts = _numbers(action.command), _numbers(command)
    assert len(numbers) == len(starts), f"{where}: {action.command} has another shape than the command {command}"
    jump = max(abs(u - s) for u, s in zip(numbers, starts, strict=True))
    slack = 1e-9 * max(1.0, *map(abs, starts))
    assert jump <= allowed + slack, (
        f"the start bumps: from {command} without any error to {action.command}, allowed are {allowed:g} ({where})"
    )


def _check_action(
    action: Action, sample: Sample, command: Value, limits: tuple[float, float] | None, where: str
) -> None:
    assert isinstance(action, Action), f"step returned {action!r} as action ({where})"
    if not is_usable(sample.measurement) or not is_usable(sample.setpoint):
        assert action.command is None, f"a bad sample must hold, but the command is {action.command} ({where})"
        assert action.reason, f"a hold must give its reason ({where})"
    if action.command is None:
        return
    assert is_usable(action.command), f"the command {action.command} is not finite ({where})"
    numbers = _numbers(action.command)
    assert len(numbers) == len(_numbers(command)), f"{action.command} has another shape than {command} ({where})"
    if limits is not None:
        low, high = limits
        assert all(low <= u <= high for u in numbers), f"{action.command} is outside {low:g} … {high:g} ({where})"


def _check_restored(
    controller: Controller[Any],
    state: Any,
    sample: Sample,
    expected: tuple[Any, Action],
    command: Value,
    where: str,
) -> None:
    """A loop that is stopped, stored as JSON and continued elsewhere goes on as if nothing had happened."""
    restored = from_plain(controller.initial(command), json.loads(_stored(state, where)))
    elsewhere = pickle.loads(pickle.dumps(controller))
    after, action = _step(elsewhere, restored, sample, where)
    assert _text(action) == _text(expected[1]), (
        f"after saving and restoring the state the action is {action}, before it was {expected[1]} ({where})"
    )
    assert _stored(after, where) == _stored(expected[0], where), f"a restored state goes on differently ({where})"


def _check_recovers(
    controller: Controller[Any], command: Value, setpoint: Value, disturbances: tuple[float, ...]
) -> None:
    """Bad samples leave the state usable: soon after them the controller acts again."""
    state = controller.initial(command)
    for bad in (None, *_NOT_NUMBERS):
        measurement = None if bad is None else _like(setpoint, bad)
        state, _ = controller.step(state, Sample(0.0, 1.0, setpoint, measurement, command, disturbances))
    commands = []
    for k in range(5):
        measurement = _scaled(setpoint, 0.5)
        sample = Sample(float(k), 1.0, setpoint, measurement, command, disturbances)
        state, action = controller.step(state, sample)
        commands.append(action.command)
    assert any(given is not None for given in commands), f"{controller!r} never acts again after bad samples"


def _step(controller: Controller[Any], state: Any, sample: Sample, where: str) -> tuple[Any, Action]:
    try:
        after, action = controller.step(state, sample)
    except Exception as error:  # whatever it raises: raising is the broken promise
        raise AssertionError(f"step raised {type(error).__name__}: {error} ({where})") from error
    return after, action


def _stored(state: Any, where: str) -> str:
    try:
        return json.dumps(to_plain(state), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"the state cannot be stored: {error} ({where})") from None


def _text(action: Action) -> str:
    return json.dumps(
        to_plain((action.command, tuple(action.parts.items()), action.saturated, action.reason, action.code))
    )


def _samples(rng: random.Random, setpoint: Value, disturbances: tuple[float, ...], count: int) -> Iterator[Sample]:
    """Mostly noisy samples near the goal; in between every kind of bad one, late ones, and absurdly large ones."""
    time = 0.0
    for _ in range(count):
        goal: Value = setpoint
        seen: Value | None = _noisy(rng, setpoint, 0.3)
        dt, applied = 1.0, None
        measured_load: Disturbances = tuple(d * rng.uniform(0.5, 2.0) for d in disturbances)
        match rng.randrange(16):
            case 0:
                seen = None
            case 1:
                seen = _like(setpoint, rng.choice(_NOT_NUMBERS))
            case 2:
                goal = _like(setpoint, rng.choice(_NOT_NUMBERS))
            case 3:
                applied = _like(setpoint if isinstance(setpoint, tuple) else 0.0, math.nan)
            case 4:
                dt = rng.choice((0.0, 1e-9, 3600.0, -1.0))
            case 5:
                measured_load = tuple(rng.choice((None, *_NOT_NUMBERS)) for _ in disturbances)
            case 6:
                measured_load = ()
            case 7:
                goal = _scaled(setpoint, rng.choice((0.0, 0.5, 2.0)))
            case 8:
                seen = _scaled(setpoint, rng.choice((0.0, -1.0, 1e6, 1e308)))
            case _:
                pass
        time += dt
        yield Sample(time, dt, goal, seen, applied, measured_load)


def _numbers(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _like(shape: Value, number: float) -> Value:
    return (number,) * len(shape) if isinstance(shape, tuple) else number


def _scaled(value: Value, factor: float) -> Value:
    """Around zero there is nothing to scale: a unit stands in for it."""
    if isinstance(value, tuple):
        return tuple((v or 1.0) * factor for v in value)
    return (value or 1.0) * factor


def _noisy(rng: random.Random, value: Value, share: float) -> Value:
    if isinstance(value, tuple):
        return tuple(v + rng.gauss(0.0, share * (abs(v) or 1.0)) for v in value)
    return value + rng.gauss(0.0, share * (abs(value) or 1.0))
