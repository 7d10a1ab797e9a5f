"""How fast messages move between two nodes: a loop for each pair, so that a slow node slows no other pair.

A mover works in rounds of equal length: it takes some messages, sends them, waits for their confirms, and rests
for the remainder. The part of the time that it works is the measurement. If nobody else uses the two nodes, that
is the part of the slower node that it uses; the more of a node its clients use, the longer each message takes. At
half of the time, it uses half of what the clients leave, and of a node that they use entirely a small part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flyball.control.controllers.common import check_between
from flyball.control.controllers.proportional_rule import ProportionalRule
from flyball.control.filters import ewma
from flyball.control.limits import clamp
from flyball.control.step import Sample

_PROBE = 10
"""Messages of the first round of a transfer, which shows how long a round takes at least."""


@dataclass(frozen=True, slots=True)
class FlowState:
    """`cost_s` is the time that a message takes, None before the first round; `interval_s` the length of a round,
    None until the first round of a transfer shows it."""

    rate_per_s: float
    cost_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True)
class ExchangeFlow:
    """A configuration; what it learns is in the state.

    >>> flow = ExchangeFlow()
    >>> state = flow.begin(None)
    >>> for _ in range(20):  # 0.1 ms a message
    ...     count = flow.count(state)
    ...     state = flow.update(state, count, count * 1e-4)
    >>> round(state.rate_per_s), flow.count(state)
    (5000, 250)
    """

    busy: float = 0.5
    """Part of the time that a mover works."""
    keep: float = 0.7
    first_per_s: float = 200.0
    least_per_s: float = 20.0
    most_per_s: float = 20_000.0
    least_interval_s: float = 0.05
    most_interval_s: float = 2.0
    round_trips: float = 4.0
    """Length of a round in those of a few messages: the more distant the nodes, the longer."""

    def __post_init__(self) -> None:
        check_between(self, "busy", 0.0, 1.0, low_open=True)
        check_between(self, "keep", 0.0, 1.0, high_open=True)
        check_between(self, "least_per_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "most_per_s", self.least_per_s, math.inf, high_open=True)
        check_between(self, "first_per_s", self.least_per_s, self.most_per_s)
        check_between(self, "least_interval_s", 0.0, math.inf, low_open=True, high_open=True)
        check_between(self, "most_interval_s", self.least_interval_s, math.inf, high_open=True)
        check_between(self, "round_trips", 1.0, math.inf, high_open=True)

    def begin(self, before: FlowState | None) -> FlowState:
        """The state of a new transfer, from that of the pair's last one."""
        return FlowState(self.first_per_s) if before is None else replace(before, interval_s=None)

    def count(self, state: FlowState) -> int:
        """How many messages the next round moves."""
        if state.interval_s is None:
            return _PROBE
        return max(1, round(state.rate_per_s * state.interval_s))

    def rest_s(self, state: FlowState, took_s: float) -> float:
        """How long to rest after a round."""
        return 0.0 if state.interval_s is None else max(0.0, state.interval_s - took_s)

    def update(self, state: FlowState, moved: int, took_s: float) -> FlowState:
        """Take in a round that moved what it should."""
        if not (moved > 0 and math.isfinite(took_s) and took_s >= 0.0):
            return state
        if state.interval_s is None:
            interval_s = clamp(self.round_trips * took_s, self.least_interval_s, self.most_interval_s)
            return replace(state, interval_s=interval_s)
        cost_s = ewma(state.cost_s, took_s / moved, self.keep)
        rule = ProportionalRule(greatest_factor=2.0, least=self.least_per_s)
        limits = (self.least_per_s, self.most_per_s)
        sample = Sample(
            0.0, state.interval_s, self.busy, cost_s * state.rate_per_s, applied=state.rate_per_s, limits=limits
        )
        _, action = rule.step(rule.initial(state.rate_per_s), sample)
        if action.command is None or isinstance(action.command, tuple):
            return replace(state, cost_s=cost_s)
        return replace(state, cost_s=cost_s, rate_per_s=clamp(action.command, *limits))
