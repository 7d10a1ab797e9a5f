"""Whether the rate still responds to the window; where it does not, the rate that is reachable.

A controller that follows Little's law must not be left to itself with a goal beyond the handlers' capacity:
messages then queue inside the window, the residence time grows with it, and goal × residence asks for ever more.
So a spell begins when the rate is short of the goal although the window is full: when the window has grown by half
since its beginning and the rate by less than a quarter of that, it grows no further; and when the rate has not
responded after four samples, a wider window does not help. The window then goes back to what the measured rate
needs (rate × the shortest residence of the spell, and a quarter more) and stays there; it follows a rate that
rises all the same. After a while, later each time, half as much again is tried for three samples. The goal counts
as reachable again when it is nearly reached, or when it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flyball.control.step import ReasonCode

SHORT = 0.9  # part of the goal below which the rate is short of it
_GROWTH = 1.5  # growth of the window after which the rate must have responded
_RESPONSE = 0.25  # part of the window's growth that the rate must show
_LEAST_SAMPLES = 4  # under the wider window: a metric may be two samples late
_SPARE = 1.25
_MORE = 1.1  # growth of the rate above the reachable rate that raises it
_FIRST_WAIT, _LONGEST_WAIT = 30, 600
_TRIAL, _WIDER = 3, 1.5  # samples of a new try, and how much wider its window is


@dataclass(frozen=True, slots=True)
class Reachability:
    """The spell below the goal: where it began, the best rate and shortest residence in it.

    `held_window` is the window of a goal that is out of reach (None: it is not).
    """

    samples: int = 0
    window: float = 0.0
    rate: float = 0.0
    best: float = 0.0
    residence_s: float = 0.0
    goal: float = 0.0
    held_window: float | None = field(default=None, metadata={"stored_as": "held"})
    wait: int = 0
    next_wait: int = _FIRST_WAIT
    trial: int = 0
    wide: int = 0
    widest: float = 0.0

    @property
    def limit(self) -> float | None:
        """The widest window that makes sense at the moment; None: any."""
        if self.held_window is None:
            return self.widest if self.wide else None
        return self.held_window * (_WIDER if self.trial else 1.0)

    @property
    def reachable(self) -> float | None:
        """The highest rate of the spell if the goal is out of reach; None: the goal may be reachable."""
        return None if self.held_window is None else self.best


def update(
    state: Reachability, goal: float, rate: float, window: float, residence_s: float, full: bool
) -> Reachability:
    """Return the state after a sample in which `window` gave `rate`; `full`: the window was full all the time."""
    if state.held_window is not None:
        if goal != state.goal:
            return Reachability(next_wait=state.next_wait)
        if rate >= SHORT * goal:
            return Reachability()
        if rate > _MORE * state.best:  # the window has a quarter to spare, so a higher rate shows
            shortest_s = min(state.residence_s, residence_s)
            enough = max(state.held_window, rate * shortest_s * _SPARE)
            return replace(state, best=rate, residence_s=shortest_s, held_window=enough)
        if state.trial:
            if state.trial > 1:
                return replace(state, trial=state.trial - 1)
            return replace(state, trial=0, wait=state.next_wait)
        best = max(0.9 * state.best, rate) if full else state.best  # follows handlers that have become slower
        if state.wait > 1:
            return replace(state, wait=state.wait - 1, best=best)
        return replace(state, best=best, trial=_TRIAL, next_wait=min(2 * state.next_wait, _LONGEST_WAIT))
    if rate >= SHORT * goal:
        return Reachability(next_wait=max(_FIRST_WAIT, state.next_wait // 2))
    if not full or window <= 0.0:
        return Reachability(next_wait=state.next_wait)
    if state.samples == 0 or goal != state.goal:
        return Reachability(1, window, rate, rate, residence_s, goal, next_wait=state.next_wait)
    spell = replace(
        state,
        samples=state.samples + 1,
        best=max(state.best, rate),
        residence_s=min(state.residence_s, residence_s),
    )
    growth = window / spell.window - 1.0
    response = spell.best / max(spell.rate, 1e-9) - 1.0
    if growth < _GROWTH - 1.0:
        return replace(spell, wide=0)
    if response >= _RESPONSE * growth:  # it responds: the spell starts again from here
        return replace(spell, samples=1, window=window, rate=rate, best=rate, wide=0)
    if spell.wide + 1 < _LEAST_SAMPLES:
        return replace(spell, wide=spell.wide + 1, widest=spell.widest if spell.wide else window)
    enough = spell.best * spell.residence_s * _SPARE
    return replace(spell, held_window=min(enough, window), wait=spell.next_wait)


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
        f"limit; reachable is about {state.best:.4g}/s, which a window of {state.held_window:.3g} gives",
    )
