"""`close_loop`: a controller on a first-order plant, sample by sample, for tests of controllers.

For workloads, noise and queues use the twin; this is the bare recurrence y(k+1) = a·y(k) + b·u(k−D) + c, so
that a test can compare with arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flyball.control.limits import clamp
from flyball.control.step import Action, Controller, Sample


class Step(NamedTuple):
    """One sample: what was measured, what the actuator applied from then on, what the controller asked for."""

    measurement: float
    applied: float
    action: Action


def close_loop(
    controller: Controller[Any],
    setpoints: Sequence[float],
    *,
    a: float,
    b: float,
    delay: int = 0,
    offset: float = 0.0,
    command: float = 0.0,
    measurement: float = 0.0,
    limits: tuple[float, float] | None = None,
    report: bool = True,
    noise: Sequence[float] = (),
) -> list[Step]:
    """Run one sample for each set point, from a plant that stands at `command` and `measurement`.

    `limits` are those of the actuator, and `report` says whether the controller learns what was applied.
    `noise` is added to the measurements, sample by sample.

    >>> from flyball.control.controllers.pi import Pi
    >>> run = close_loop(Pi(kp=-0.0016, ki=0.006), [400.0] * 40, a=0.26, b=59.73)
    >>> round(run[-1].measurement, 2)
    400.0
    """
    state, applied, y = controller.initial(command), command, measurement
    under_way, run = [command] * delay, []
    for k, goal in enumerate(setpoints):
        seen = y + (noise[k] if k < len(noise) else 0.0)
        state, action = controller.step(state, Sample(float(k), 1.0, goal, seen, applied if report else None))
        if action.command is not None:
            assert not isinstance(action.command, tuple), f"this plant has one command, got {action.command}"
            applied = action.command if limits is None else clamp(action.command, *limits)
        run.append(Step(seen, applied, action))
        under_way.append(applied)
        y = a * y + b * under_way.pop(0) + offset
    return run
