"""Whether the rate still responds to the window; where it does not, the rate that is reachable.

A controller that follows Little's law must not be left to itself with a goal beyond the handlers' capacity:
messages then queue inside the window, the residence time grows with it, and goal × residence asks for ever more.
So a spell begins when the rate is short of the goal although the window is full: when the window has grown by half
since its beginning and the rate by less than half of that, it grows no further; and when the rate has not
responded after four samples, a wider window does not help.

The window is then held where it is, which gives all that is reachable *now*, whatever it was before, and made
narrower step by step while the rate stays. A step that costs rate is taken back, and one more for noise: that is
the knee. What one sample shows may be chance, so two in a row decide. A rate that rises all the same opens the
window again. After a while, later each time, half as much again is tried for three samples, and the knee is
looked for anew. The goal counts as reachable again when it is nearly reached, or when it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flyball.control.filters import ewma
from flyball.control.step import ReasonCode

SHORT = 0.9  # part of the goal below which the rate is short of it
_GROWTH = 1.5  # growth of the window after which the rate must have responded
_RESPONSE = 0.5  # part of the window's growth that the rate must show
_LEAST_SAMPLES = 4  # under the wider window: a metric may be two samples late
_STEP = 0.85  # how much narrower the window becomes in a step towards the knee
_COSTS = 0.92  # part of the mean rate below which a step has cost some
_DOUBTS = 2  # samples in a row that show the same, after which it is no chance
_KEEP_RATE = 0.7  # part of the mean rate that stays
_MORE = 1.1  # growth of the rate above the reachable rate that raises it
_FIRST_WAIT, _LONGEST_WAIT = 30, 600
_TRIAL, _WIDER = 3, 1.5  # samples of a new try, and how much wider its window is


@dataclass(frozen=True, slots=True)
class Reachability:
    """The spell below the goal: where it began and the best rate in it, or while the window is held the mean rate.

    `held_window` is the window of a goal that is out of reach (None: it is not), `at_knee` whether it needs no
    further step.
    """

    samples: int = 0
    window: float = 0.0
    rate: float = 0.0
    best: float = 0.0
    goal: float = 0.0
    held_window: float | None = field(default=None, metadata={"stored_as": "held"})
    wait: int = 0
    next_wait: int = _FIRST_WAIT
    trial: int = 0
    wide: int = 0
    widest: float = 0.0
    near: int = 0
    at_knee: bool = False
    doubts: int = 0

    @property
    def limit(self) -> float | None:
        """The widest window that makes sense at the moment; None: any."""
        if self.held_window is None:
            return self.widest if self.wide else None
        return self.held_window * (_WIDER if self.trial else 1.0)

    @property
    def reachable(self) -> float | None:
        """The rate that the held window gives if the goal is out of reach; None: the goal may be reachable."""
        return None if self.held_window is None else self.best


def update(state: Reachability, goal: float, rate: float, window: float, full: bool) -> Reachability:
    """Return the state after a sample in which `window` gave `rate`; `full`: the window was full all the time."""
    if state.held_window is not None:
        return _update_held(state, state.held_window, goal, rate, full)
    if rate >= SHORT * goal:
        near = state.near + 1
        if state.samples == 0 or near >= _DOUBTS:
            return Reachability(next_wait=max(_FIRST_WAIT, state.next_wait // 2))
        return replace(state, near=near)
    if not full or window <= 0.0:
        return Reachability(next_wait=state.next_wait)
    if state.samples == 0 or goal != state.goal:
        return Reachability(1, window, rate, rate, goal, next_wait=state.next_wait)
    spell = replace(state, samples=state.samples + 1, best=max(state.best, rate), near=0)
    growth = window / spell.window - 1.0
    response = spell.best / max(spell.rate, 1e-9) - 1.0
    if growth < _GROWTH - 1.0:  # the first sample may contain some time before the handlers became slower
        return replace(spell, wide=0, rate=min(spell.rate, rate))
    if response >= _RESPONSE * growth:  # it responds: the spell starts again from here
        return replace(spell, samples=1, window=window, rate=rate, best=rate, wide=0)
    if spell.wide + 1 < _LEAST_SAMPLES:
        return replace(spell, wide=spell.wide + 1, widest=spell.widest if spell.wide else window)
    return replace(spell, best=rate, held_window=window, wait=spell.next_wait)


def _update_held(state: Reachability, held: float, goal: float, rate: float, full: bool) -> Reachability:
    if goal != state.goal:
        return Reachability(next_wait=state.next_wait)
    if rate >= SHORT * goal:
        return Reachability()
    if not full:
        return state
    mean = ewma(state.best, rate, _KEEP_RATE)
    if not state.at_knee:
        if rate >= _COSTS * state.best:
            return replace(state, best=mean, held_window=_STEP * held, doubts=0)
        if state.doubts + 1 < _DOUBTS:
            return replace(state, doubts=state.doubts + 1)
        return replace(state, held_window=held / _STEP**2, at_knee=True, doubts=0)
    if rate > _MORE * state.best:  # the window has some to spare, so a higher rate shows
        if state.doubts + 1 < _DOUBTS:
            return replace(state, doubts=state.doubts + 1)
        wider = held * (_WIDER if state.trial else 1.0 / _STEP)
        return replace(state, best=rate, held_window=wider, trial=0, doubts=0)
    if state.trial:
        if state.trial > 1:
            return replace(state, trial=state.trial - 1, doubts=0)
        return replace(state, trial=0, wait=state.next_wait, at_knee=False, doubts=0)
    if state.wait > 1:
        return replace(state, wait=state.wait - 1, best=mean, doubts=0)
    return replace(state, best=mean, trial=_TRIAL, next_wait=min(2 * state.next_wait, _LONGEST_WAIT), doubts=0)


def explain(state: Reachability, goal: float) -> tuple[ReasonCode, str]:
    """Explain why the window is limited: the code, and the sentence for a user."""
    if state.held_window is None:
        return (
            ReasonCode.AWAITING_RESPONSE,
            f"the rate has not responded to the wider window yet: held at {state.widest:.3g} for a moment",
        )
    return (
        ReasonCode.UNREACHABLE,
        f"the goal of {goal:.4g}/s is out of reach: a wider window no longer brings more, the handlers are the "
        f"limit; reachable is about {state.best:.4g}/s",
    )
