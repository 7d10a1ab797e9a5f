"""What a loop controls in the twin.

A plant has an actuator (`apply`) and a sensor (`measure`); both get the time, which never decreases. The
linear plant here is the one that designs are made for; plants with queues and messages are built on SimPy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from flyball.control.limits import clamp
from flyball.control.models import Arx
from flyball.control.step import Value
from flyball.errors import InvalidValue


class Plant(Protocol):
    def measure(self, time: float) -> Value | None:
        """The measurement at `time`."""
        ...

    def apply(self, command: Value, time: float) -> Value | None:
        """Set the command; return what was really applied (None: as commanded)."""
        ...


class ArxPlant:
    """An ARX model that runs in time: y(k+1) = a·y(k) + … + b·u(k−D) + … + c + d(k) + e(k).

    One model sample lasts `period_s`; the command is held in between. e is white noise of standard deviation
    `noise` that enters the process, as least squares assumes; `sensor_noise` is only seen, never fed back.
    d is a load disturbance, a function of time. `limits` are those of the actuator, and `whole` means that it has
    whole numbers only: what it then returns as applied is the value before rounding, as controllers expect.

    >>> plant = ArxPlant(Arx((0.5,), (2.0,), delay=1), command=0.0)
    >>> seen = []
    >>> for k in range(5):
    ...     seen.append(plant.measure(k))
    ...     _ = plant.apply(1.0, k)
    >>> seen
    [0.0, 0.0, 2.0, 3.0, 3.5]
    """

    def __init__(
        self,
        model: Arx,
        *,
        period_s: float = 1.0,
        command: float = 0.0,
        output: float | None = None,
        noise: float = 0.0,
        sensor_noise: float = 0.0,
        disturbance: Callable[[float], float] | None = None,
        limits: tuple[float, float] | None = None,
        whole: bool = False,
        rng: np.random.Generator | None = None,
    ) -> None:
        for name, value in (("noise", noise), ("sensor_noise", sensor_noise)):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidValue(f"{name} must be a standard deviation >= 0, got {value}")
        if (noise or sensor_noise) and rng is None:
            raise InvalidValue("a noisy plant needs a random generator: pass rng=numpy.random.default_rng(seed)")
        self.model = model
        self._period_s = period_s
        self._noise, self._sensor_noise = noise, sensor_noise
        self._disturbance = disturbance
        self._limits, self._whole = limits, whole
        self._rng = rng
        self._sample = 0
        self._origin: float | None = None
        at_rest = self._at_rest(command) if output is None else output
        self._outputs = deque([at_rest] * model.order, maxlen=model.order)  # newest first
        under_way = model.delay + len(model.b)
        self._commands = deque([float(command)] * under_way, maxlen=under_way)  # newest first
        self._command = float(command)

    def _at_rest(self, command: float) -> float:
        """The output that stays as it is under `command`; 0 for a plant that has none."""
        rest = 1.0 - sum(self.model.a)
        return (sum(self.model.b) * command + self.model.offset) / rest if self.model.is_stable else 0.0

    def measure(self, time: float) -> float:
        if self._origin is None:
            self._origin = time
        sample = round((time - self._origin) / self._period_s)
        while self._sample < sample:
            self._advance()
        output = self._outputs[0]
        if self._sensor_noise and self._rng is not None:
            output += self._rng.normal(0.0, self._sensor_noise)
        return output

    def apply(self, command: Value, time: float) -> float:
        del time  # a command holds from its sample on
        if isinstance(command, tuple):
            raise InvalidValue(f"this plant has one command, got {len(command)} commands {command}")
        within = command if self._limits is None else clamp(command, *self._limits)
        self._command = float(math.floor(within + 0.5)) if self._whole else within
        return within

    def _advance(self) -> None:
        model = self.model
        self._commands.appendleft(self._command)
        output = model.offset + sum(a * y for a, y in zip(model.a, self._outputs, strict=True))
        output += sum(b * self._commands[model.delay + i] for i, b in enumerate(model.b))
        if self._disturbance is not None and self._origin is not None:
            output += self._disturbance(self._origin + self._sample * self._period_s)
        if self._noise and self._rng is not None:
            output += self._rng.normal(0.0, self._noise)
        # a plant that runs away must not overflow into errors: beyond this it is as good as infinite
        self._outputs.appendleft(clamp(output, -1e300, 1e300))
        self._sample += 1
