"""Does the rate still answer to the window? Notices when it does not, and says what is reachable.

A regulator that follows Little's law must not be left alone with a goal beyond the handlers' capacity: messages
then queue inside the window, the residence time grows with it, and goal × residence asks for ever more. So while
the rate is short of the goal although the window is full, the spell is watched: when the window has grown by half
since its beginning and the rate by less than a quarter of that, it grows no further; and when the rate has not
answered after four samples, widening is no cure. The window then goes back to what the rate seen needs (rate × the
shortest residence of the spell, and a quarter more) and stays there; a rate that rises all the same takes it
along. After a while, later each time, half as much again is tried for three samples. The goal is believed in again
when it is nearly reached, or when it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball.control.step import ReasonCode

SHORT = 0.9  # part of the goal below which the rate is short of it
_GROWN = 1.5  # growth of the window after which the rate must have answered
_ANSWER = 0.25  # part of the window's growth that the rate must show
_LEAST_SAMPLES = 4  # under the wider window: a metric may be two samples late
_SPARE = 1.25
_MORE = 1.1  # growth of the rate beyond what was thought to be reachable
_FIRST_WAIT, _LONGEST_WAIT = 30, 600
_TRIAL, _WIDER = 3, 1.5  # samples of a new try, and how much wider its window is


@dataclass(frozen=True, slots=True)
class Reach:
    """The spell below the goal: where it began, the best rate and shortest residence in it; or a held window."""

    samples: int = 0
    window: float = 0.0
    rate: float = 0.0
    best: float = 0.0
    residence_s: float = 0.0
    goal: float = 0.0
    held: float | None = None
    wait: int = 0
    next_wait: int = _FIRST_WAIT
    trial: int = 0
    wide: int = 0
    widest: float = 0.0

    @property
    def limit(self) -> float | None:
        """The widest window that makes sense at the moment; None: any."""
        if self.held is None:
            return self.widest if self.wide else None
        return self.held * (_WIDER if self.trial else 1.0)

    @property
    def reachable(self) -> float | None:
        """The rate that was found to be all there is; None: nothing speaks against the goal."""
        return None if self.held is None else self.best


def watch(state: Reach, goal: float, rate: float, window: float, residence_s: float, full: bool) -> Reach:
    """The state after a sample in which `window` gave `rate`; `full`: the window was used up all the time."""
    if state.held is not None:
        if goal != state.goal:
            return Reach(next_wait=state.next_wait)
        if rate >= SHORT * goal:
            return Reach()
        if rate > _MORE * state.best:  # a quarter of the window is to spare: it shows when there is more
            shortest_s = min(state.residence_s, residence_s)
            held = max(state.held, rate * shortest_s * _SPARE)
            return replace(state, best=rate, residence_s=shortest_s, held=held)
        if state.trial:
            if state.trial > 1:
                return replace(state, trial=state.trial - 1)
            return replace(state, trial=0, wait=state.next_wait)
        best = max(0.9 * state.best, rate) if full else state.best  # follows handlers that have become slower
        if state.wait > 1:
            return replace(state, wait=state.wait - 1, best=best)
        return replace(state, best=best, trial=_TRIAL, next_wait=min(2 * state.next_wait, _LONGEST_WAIT))
    if rate >= SHORT * goal:
        return Reach(next_wait=max(_FIRST_WAIT, state.next_wait // 2))
    if not full or window <= 0.0:
        return Reach(next_wait=state.next_wait)
    if state.samples == 0 or goal != state.goal:
        return Reach(1, window, rate, rate, residence_s, goal, next_wait=state.next_wait)
    seen = replace(
        state,
        samples=state.samples + 1,
        best=max(state.best, rate),
        residence_s=min(state.residence_s, residence_s),
    )
    grown = window / seen.window - 1.0
    answered = seen.best / max(seen.rate, 1e-9) - 1.0
    if grown < _GROWN - 1.0:
        return replace(seen, wide=0)
    if answered >= _ANSWER * grown:  # it answers: watch on from here
        return replace(seen, samples=1, window=window, rate=rate, best=rate, wide=0)
    if seen.wide + 1 < _LEAST_SAMPLES:
        return replace(seen, wide=seen.wide + 1, widest=seen.widest if seen.wide else window)
    held = seen.best * seen.residence_s * _SPARE
    return replace(seen, held=min(held, window), wait=seen.next_wait)


def explain(state: Reach, goal: float) -> tuple[ReasonCode, str]:
    """Why the window is limited: the code, and the words for a user."""
    if state.held is None:
        return (
            ReasonCode.AWAITING_RESPONSE,
            f"the rate has not answered to the wider window yet: it stays at {state.widest:.3g} for a moment",
        )
    return (
        ReasonCode.UNREACHABLE,
        f"the goal of {goal:.4g}/s is out of reach: a wider window no longer brings more, the handlers are the "
        f"limit; reachable is about {state.best:.4g}/s, which a window of {state.held:.3g} gives",
    )
