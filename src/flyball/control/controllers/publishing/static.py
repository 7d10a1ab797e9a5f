"""Static: a batch size and a polling interval that somebody chose."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flyball.control.controllers.common import check_between, check_whole, hold_unusable
from flyball.control.controllers.publishing.signals import Batching, batching, measurement_of
from flyball.control.step import Action, ReasonCode, Sample, Value


@dataclass(frozen=True, slots=True)
class StaticState:
    command: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Static:
    """A publisher's batch size N and polling interval, fixed; the baseline of `batch-aimd` and `auto`.

    Formula: N(k) = batch, T_poll(k) = poll_s, whatever is measured. Without a batch the publisher's initial one
    stays. Polling every T_poll moves at most N/T_poll messages a second: above that rate the store fills
    without bound (N = 1 at 50 ms carries 20 a second).

    >>> static = Static(batch=10, poll_s=0.05)
    >>> static.initial((1.0, 1.0, 0.0, 100.0)).command
    (10.0, 10.0, 0.05, 1000.0)

    Source: the publisher paper, "with auto-tuning off".
    """

    batch: int | None = field(default=None, metadata={"help": "N, messages a batch; left out: as at the start"})
    poll_s: float = field(default=0.0, metadata={"help": "T_poll in seconds; 0: look at every arrival"})
    window: int = field(default=1000, metadata={"help": "most messages on the way to the broker"})

    def __post_init__(self) -> None:
        if self.batch is not None:
            check_whole(self, "batch", 1)
        check_between(self, "poll_s", 0.0, math.inf, high_open=True)
        check_whole(self, "window", 1)

    def initial(self, command: Value) -> StaticState:
        batch = float(self.batch) if self.batch is not None else max(1.0, batching(command).most)
        return StaticState(tuple(Batching(batch, batch, self.poll_s, float(max(self.window, batch)))))

    def step(self, state: StaticState, sample: Sample) -> tuple[StaticState, Action]:
        if measurement_of(sample) is None:
            return state, hold_unusable(sample)
        return state, Action(state.command, {"N": state.command[1]}, reason="static", code=ReasonCode.OPEN_LOOP)
