"""The controllers that the benchmark and the live experiments compare, and the open-loop run they build on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flyball.consumer.policy.controller import ControllerOption
from flyball.control.controllers.fixed import Fixed
from flyball.control.controllers.p import P
from flyball.control.controllers.pi import Pi
from flyball.control.controllers.pid import Pid
from flyball.control.controllers.proportional_rule import ProportionalRule
from flyball.control.controllers.self_tuning import SelfTuning
from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.identification.identify import Fit, identify
from flyball.control.models import Array
from flyball.control.step import Action, ReasonCode, Sample, Value
from flyball.lab.rigs.consumer.rig import Rig, run_live

PRINTED_PI = Pi(kp=-0.0016, ki=0.0060)
PRINTED_PID = Pid(kp=0.0017761, ki=0.0058096, kd=0.0018417)
P_GAIN = 0.01
"""The prefetch paper prints only the range in which P is stable, −0.01239 to 0.02109; this is about its middle."""

DEFAULT, PRINTED, FIXED = "our default", "printed PI", "best fixed window"


@dataclass(frozen=True)
class Contender:
    name: str
    controller: ControllerOption = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stairs:
    """A controller without feedback: one window after the other, each for `samples_each` samples."""

    windows: tuple[float, ...]
    samples_each: int = 1

    def initial(self, command: Value) -> int:
        del command
        return 0

    def step(self, state: int, sample: Sample) -> tuple[int, Action]:
        del sample
        index = min(state // self.samples_each, len(self.windows) - 1)
        return state + 1, Action(self.windows[index], reason="open loop", code=ReasonCode.OPEN_LOOP)


def open_loop(
    rig: Rig, windows: tuple[float, ...], *, samples_each: int = 1, **options: Any
) -> tuple[Array, Array]:
    """Apply the windows live and return them with the rates they gave; the first sample only warms up."""
    queue = rig.queue(fill=int(2500 * samples_each * len(windows)))
    stairs = Stairs((windows[0], *windows) if samples_each == 1 else windows, samples_each)
    samples = samples_each * len(windows) + 2
    run = run_live(rig, queue, "rate=1", samples=samples, controller=stairs, **options)
    return run.command[1:], run.rate[1:]


def our_pi(windows: Array, rates: Array) -> tuple[Pi, Fit]:
    """Design a static PI from the open-loop run: it settles in 8 samples on the model (in 5: fragile)."""
    fit = identify(windows, rates, align="same", delay=0, method="least squares")
    gains = design(fit.model, "pi", settling=8, overshoot=0.05).gains
    assert isinstance(gains, Gains)
    return Pi(gains.kp, gains.ki), fit


def self_tuning(late: int = 0) -> SelfTuning:
    """A self-tuning controller that starts from the printed gains.

    The plant settles within a sample and has no offset, so only its gain is estimated. `late`: delay of the metric
    in samples.
    """
    return SelfTuning(
        PRINTED_PI.kp,
        PRINTED_PI.ki,
        settling=6.0,
        every=10,
        forgetting=0.9,
        delay=late,
        offset=False,
        pole=0.0,
    )


def contenders(goal: float, gain: float, static_pi: Pi) -> list[Contender]:
    """All contenders; `gain` is the plant's (messages a second per slot), `goal` the rate of the fixed window."""
    return [
        Contender(DEFAULT),
        Contender(PRINTED, PRINTED_PI),
        Contender("printed PID", PRINTED_PID),
        Contender(f"printed P, Kp={P_GAIN}", P(kp=P_GAIN, bias=0.0)),
        Contender("static PI of ours", static_pi),
        Contender("proportional rule", ProportionalRule()),
        Contender(FIXED, Fixed(goal / gain)),
        Contender("our default, paced", options={"pacing": True}),
    ]
