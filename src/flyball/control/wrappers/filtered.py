"""Ewma and Median: smooth the measurement before the controller sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flyball.control.controllers.common import as_tuple, check_between, check_whole
from flyball.control.filters import ewma, median
from flyball.control.step import Action, Controller, Sample, Value, is_usable, seen
from flyball.control.wrappers.common import check_inner


@dataclass(frozen=True, slots=True)
class EwmaState:
    """`average` is None until something was measured."""

    inner: Any
    average: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ewma:
    """Averages the measurement, the old average weighing `keep`: calms white noise.

    Formula: ȳ(k) = keep·ȳ(k−1) + (1−keep)·y(k). The filter is part of the loop: it adds the pole `keep`, so
    design and verify with it. A missing or infinite measurement passes through unsmoothed, and the controller
    holds.

    >>> from flyball.control.controllers.p import P
    >>> calm = Ewma(P(kp=1.0, bias=0.0), keep=0.75)
    >>> state = calm.initial(0.0)
    >>> for measured in (0.0, 8.0):
    ...     state, action = calm.step(state, Sample(0.0, 1.0, setpoint=0.0, measurement=measured))
    >>> action.command
    -2.0
    """

    inner: Controller[Any] = field(metadata={"help": "the controller that sees the average"})
    keep: float = field(metadata={"help": "part of the old average that stays, from 0 to below 1"})

    def __post_init__(self) -> None:
        check_inner(self)
        check_between(self, "keep", 0.0, 1.0, high_open=True)

    def initial(self, command: Value) -> EwmaState:
        return EwmaState(self.inner.initial(command))

    def step(self, state: EwmaState, sample: Sample) -> tuple[EwmaState, Action]:
        measured, average = sample.measurement, state.average
        if measured is None or not is_usable(measured):
            inner, action = self.inner.step(state.inner, sample)
            return EwmaState(inner, average), action
        values = as_tuple(measured)
        if average is None or len(average) != len(values):
            average = values
        else:
            average = tuple(ewma(a, v, self.keep) for a, v in zip(average, values, strict=True))
        smooth: Value = average if isinstance(measured, tuple) else average[0]
        inner, action = self.inner.step(state.inner, seen(sample, smooth, sample.applied))
        return EwmaState(inner, average), action


@dataclass(frozen=True, slots=True)
class MedianState:
    """The last measurements of each sensor, oldest first."""

    inner: Any
    windows: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Median:
    """Takes the median of the last measurements: ignores outliers.

    Formula: ỹ(k) = median(y(k), …, y(k−size+1)). It delays by (size−1)/2 samples: design and verify with that
    delay.

    >>> from flyball.control.controllers.p import P
    >>> calm = Median(P(kp=1.0, bias=0.0), size=3)
    >>> state = calm.initial(0.0)
    >>> for measured in (5.0, 900.0, 6.0):
    ...     state, action = calm.step(state, Sample(0.0, 1.0, setpoint=10.0, measurement=measured))
    >>> action.command
    4.0
    """

    inner: Controller[Any] = field(metadata={"help": "the controller that sees the median"})
    size: int = field(default=3, metadata={"help": "number of measurements in the median"})

    def __post_init__(self) -> None:
        check_inner(self)
        check_whole(self, "size", 1)

    def initial(self, command: Value) -> MedianState:
        return MedianState(self.inner.initial(command))

    def step(self, state: MedianState, sample: Sample) -> tuple[MedianState, Action]:
        measured = sample.measurement
        if measured is None or not is_usable(measured):
            inner, action = self.inner.step(state.inner, sample)
            return MedianState(inner, state.windows), action
        values = as_tuple(measured)
        windows = state.windows if len(state.windows) == len(values) else ((),) * len(values)
        pairs = [median(window, value, self.size) for window, value in zip(windows, values, strict=True)]
        middle = tuple(m for _, m in pairs)
        smooth: Value = middle if isinstance(measured, tuple) else middle[0]
        inner, action = self.inner.step(state.inner, seen(sample, smooth, sample.applied))
        return MedianState(inner, tuple(window for window, _ in pairs)), action
