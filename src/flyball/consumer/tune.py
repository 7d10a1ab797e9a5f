"""Identification on a running consumer: move its window within bounds, fit a model, offer controllers.

The experiment is the consumer itself with a controller that plays a signal (a staircase, or pseudo-random steps
around the window that the goal needs); messages are handled as always. It is bounded in width, in time and in what
it asks of the handlers: a staircase turns back once the rate is half again above the goal. The signal is repeated,
at most `MOST_RUNS` times in all, while the model is too uncertain for the controller that is asked for: on a
machine that pauses now and then, a few spoiled samples among twenty hide the effect of the window.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flyball.consumer.config import ConsumerConfig, ProfileConfig
from flyball.consumer.policy.goals import Rate, parse_goal
from flyball.consumer.policy.little import default_trim
from flyball.control.controllers.common import as_scalar
from flyball.control.gains import Gains, Kind
from flyball.control.identification.identify import Fit, identify
from flyball.control.models import Array, Arx, first_order
from flyball.control.record import LoopRecord
from flyball.control.step import Action, ReasonCode, Sample, Value, hold
from flyball.control.tuning import (
    LEAST_SAMPLES,
    Candidate,
    SignalKind,
    Untunable,
    check_samples,
    designed,
    excitation,
)
from flyball.control.verification.verify import verify
from flyball.errors import InvalidValue

MOST_RUNS = 4  # of the signal; three were enough for every seed of a machine that pauses once a second
ENOUGH = 1.5  # part of the goal at which a staircase need not climb further
_NO_VARIANCE = 1e-12  # a covariance matrix must stay invertible


@dataclass(frozen=True, slots=True)
class PlaybackState:
    """How many values were played, the index of the last one, and the direction."""

    count: int = 0
    index: int = 0
    up: bool = True


@dataclass(frozen=True, slots=True)
class Playback:
    """Plays one value after another; turns back where the measurement reaches `enough`.

    >>> play, state, y, steps = Playback((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), enough=300.0), PlaybackState(), 100.0, []
    >>> for k in range(7):
    ...     state, action = play.step(state, Sample(k, 1.0, 200.0, y))
    ...     steps.append((action.command, action.code.name))
    ...     y = 100.0 * action.command
    >>> [command for command, _ in steps], steps[-1]
    ([1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0], (3.0, 'SIGNAL_COMPLETE'))
    """

    values: tuple[float, ...] = field(metadata={"help": "the commands, one a sample"})
    enough: float = field(default=math.inf, metadata={"help": "measurement at which the signal turns back"})

    def initial(self, command: Value) -> PlaybackState:  # noqa: ARG002  the signal says where to begin
        return PlaybackState()

    def step(self, state: PlaybackState, sample: Sample) -> tuple[PlaybackState, Action]:
        if sample.measurement is None:
            return state, hold("no measurement: the signal waits", ReasonCode.HELD_NO_MEASUREMENT)
        index, up = state.index, state.up
        if state.count:
            turn = as_scalar(sample.measurement) >= self.enough or index == len(self.values) - 1
            up = not turn if up else index == 0
            index = min(max(index + (1 if up else -1), 0), len(self.values) - 1)
        after = PlaybackState(state.count + 1, index, up)
        if state.count and state.count % len(self.values) == 0:
            return after, Action(
                self.values[index], reason="the signal is complete", code=ReasonCode.SIGNAL_COMPLETE
            )
        return after, Action(self.values[index], code=ReasonCode.OPEN_LOOP)


@dataclass(frozen=True)
class Tuning:
    """The data, the model and the controllers of an experiment."""

    windows: tuple[float, ...]
    rates: tuple[float, ...]
    fit: Fit
    candidates: tuple[Candidate, ...]
    config: ConsumerConfig
    """The consumer with the candidate that is recommended."""

    def profile(self, name: str) -> ProfileConfig:
        """This workload with the PI gains that were designed for it."""
        gains = next(candidate.config for candidate in self.candidates if candidate.name == "pi")
        model, _ = design_model(self.fit)
        return ProfileConfig(
            name=name, a=model.a[0], b=model.b[0], kp=gains["kp"], ki=gains["ki"], r2=round(self.fit.r2, 4)
        )


def rate_goal(text: str) -> Rate:
    """Parse the goal of an experiment, which is a rate."""
    goal = parse_goal(text)
    if not isinstance(goal, Rate):
        raise InvalidValue(
            f"tuning needs the goal rate=…, got {text!r}: the other goals have their own controllers"
        )
    return goal


async def record(
    config: ConsumerConfig, windows: tuple[float, ...], on_record: Callable[[LoopRecord], None] = lambda _: None
) -> AsyncGenerator[tuple[tuple[float, ...], tuple[float, ...]], None]:
    """Play the signal on the live consumer, over and over; yield after each run (windows, rates) of all samples so
    far in which messages were not lacking."""
    goal = rate_goal(config.goal or "")
    playback = Playback(windows, enough=ENOUGH * goal.per_s)
    consumer = config.consumer(controller=playback, mode="on", window=max(1, round(windows[0])))
    assert consumer.loop is not None
    reported = 0
    async with consumer:
        for run in range(1, MOST_RUNS + 1):
            deadline = time.monotonic() + (2 * len(windows) + 10) * config.period_s
            complete = False
            while not complete and time.monotonic() < deadline:
                await asyncio.sleep(config.period_s / 4)
                records = consumer.steps()
                for record in records[reported:]:
                    on_record(record)
                reported = len(records)
                complete = sum(record.code is ReasonCode.SIGNAL_COMPLETE for record in records) >= run
            rows = select_informative(consumer.steps()[2:])  # the first sample is the start
            if len(rows) < LEAST_SAMPLES:
                raise Untunable(
                    f"only {len(rows)} samples came in which the queue had messages, {LEAST_SAMPLES} are needed: "
                    "publish more, or let the experiment take longer"
                )
            yield tuple(window for window, _ in rows), tuple(rate for _, rate in rows)


def select_informative(records: Sequence[LoopRecord]) -> list[tuple[float, float]]:
    """Select (window, rate) of the samples that show the effect of a window: with a rate, and with messages."""
    return [
        (as_scalar(record.applied), as_scalar(record.measurement))
        for record in records
        if record.applied is not None and record.measurement is not None and record.code is not ReasonCode.STARVED
    ]


def design_model(fit: Fit) -> tuple[Arx, Array]:
    """The model to design for, and the covariance of its a and b.

    A rate may remember what it was (a above 0), never its opposite. Where the fit cannot tell a from 0, as with
    most consumers at samples of a second, a is 0: what is left of b is
    its estimate given that (of jointly normal estimates, the conditional one, which is the least-squares estimate
    without a). It is far more certain, so that a short experiment is enough for gains that are robust.
    """
    model, covariance = fit.model, fit.covariance[:2, :2]
    if fit.confidence["a"][0] > 0.0:
        return model, covariance
    slope = covariance[0, 1] / covariance[0, 0]
    b = model.b[0] - slope * model.a[0]
    variance = covariance[1, 1] - slope * covariance[0, 1]
    return first_order(0.0, float(b), model.delay), np.diag([_NO_VARIANCE, max(float(variance), _NO_VARIANCE)])


_DESIGNS: dict[str, tuple[Kind, bool]] = {  # and whether the set point is fed forward
    "pi_ff": ("pi", True),
    "pi": ("pi", False),
    "state_feedback": ("state", False),
}
CANDIDATES = ("little", *_DESIGNS)
"""Names of the candidates; the recommended one comes first."""


def propose(fit: Fit, settling: float, overshoot: float) -> tuple[Candidate, ...]:
    """Design controllers for the identified plant; the recommended one comes first."""
    trim = default_trim()
    certificate = verify(first_order(0.0, 1.0), Gains(trim.kp, trim.ki))
    why = (
        "measures the residence time itself: a new goal is met by feed-forward; its trim removes what is left in "
        f"{certificate.settling_step} samples"
    )
    candidates = [Candidate("little", {"name": "little"}, certificate, why, settling=1)]
    model, covariance = design_model(fit)
    for name, (kind, feed_forward) in _DESIGNS.items():
        candidates.append(
            designed(
                name,
                kind,
                model,
                settling=settling,
                overshoot=overshoot,
                covariance=covariance,
                feed_forward=feed_forward,
            )
        )
    return tuple(candidates)


async def tune(
    config: ConsumerConfig,
    *,
    kind: SignalKind = "staircase",
    samples: int = 30,
    hold_samples: int = 3,
    settling: float = 4.0,
    overshoot: float = 0.1,
    controller: str = "little",
    on_record: Callable[[LoopRecord], None] = lambda _: None,
    on_repeat: Callable[[str], None] = lambda _: None,
) -> Tuning:
    """Run the experiment, fit the model, design controllers, and put the chosen one into the config.

    The signal is repeated while the chosen controller is rejected for the model; `on_repeat` is told why.
    """
    check_samples(samples)
    if controller not in CANDIDATES:
        raise InvalidValue(f"controller must be one of {', '.join(CANDIDATES)}, got {controller!r}")
    played = excitation(kind, 1.0, config.max_window, samples=samples, hold=hold_samples)
    run = 0
    async with aclosing(record(config, played, on_record)) as experiment:
        async for windows, rates in experiment:
            run += 1
            fit = identify(windows, rates, align="same", delay=0, method="least squares")
            candidates = await asyncio.to_thread(propose, fit, settling, overshoot)  # about a second
            chosen = candidates[CANDIDATES.index(controller)]
            if chosen.accepted:
                break
            if run < MOST_RUNS:
                on_repeat(
                    f"{controller} is rejected after {len(windows)} samples ({chosen.reason}): the signal is "
                    f"repeated for a more certain model, run {run + 1} of at most {MOST_RUNS}"
                )
    if not chosen.accepted:
        raise Untunable(
            f"{controller} is not a candidate for this plant after {len(windows)} samples: {chosen.reason}; a "
            "longer experiment (more samples, or a longer period) gives a better model, and `little` needs none"
        )
    tuned = config.model_copy(update={"controller": chosen.config, "max_window": max(config.max_window, 2000.0)})
    return Tuning(windows, rates, fit, candidates, tuned)


def model_table(fit: Fit) -> dict[str, Any]:
    """The model as it is written beside the config."""
    return {
        "a": fit.model.a[0],
        "b": fit.model.b[0],
        "c": fit.model.offset,
        "delay": fit.model.delay,
        "r2": fit.r2,
        "linear_range": list(fit.linear_range),
    }


__all__ = ["CANDIDATES", "MOST_RUNS", "Playback", "Tuning", "model_table", "propose", "record", "tune"]
