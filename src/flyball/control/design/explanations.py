"""Why a specification is refused: the limit of this kind of controller on this plant, and what does better."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flyball.control.design.search import Demand
from flyball.control.design.specification import Task, candidates, settles, slack, slowness

NAMES = {"p": "P", "pi": "PI", "pid": "PID", "state": "state feedback"}


def refusal(task: Task, settling: float, overshoot: float) -> str:
    """Explain a specification that not even a fragile loop meets."""
    name, delay = NAMES[task.controller], task.plant.delay
    where = f"with delay {delay} " if delay else ""
    limit = fastest(task, robust=False)
    if limit is None:
        text = f"{where}no {name} makes this plant stable"
    else:
        text = f"{where}no {name} settles in under {max(limit, math.ceil(settling) + 1):g} samples here"
    other = _other_kind(task, settling, overshoot)
    return f"{text}; {other}" if other else text


def fragile_offer(task: Task, settling: float, overshoot: float) -> str:
    """Explain a specification that only a fragile loop meets, with the nearest one that an accepted loop meets."""
    limit = fastest(task, robust=True) if task.covariance is None else _slower(task, settling, overshoot)
    offers = [] if limit is None else [f"an accepted one settles in {max(limit, math.ceil(settling)):g} samples"]
    other = _other_kind(task, settling, overshoot)
    return "; ".join([*offers, *([other] if other else []), "allow_fragile permits it"])


def fastest(task: Task, *, robust: bool) -> float | None:
    """The shortest settling, in whole samples, that such a controller reaches; None: it cannot make it stable."""
    if task.controller == "state":
        return _fastest_state(task, robust)
    gains = task.search(Demand(robust=robust), slowness, polish=not robust)
    reached = None if gains is None else task.check(gains).settling
    if reached is None:
        return None
    whole = math.ceil(reached)
    return float(whole - 1 if whole > 1 and reached <= whole - 1 + slack(whole - 1) else whole)


def _fastest_state(task: Task, robust: bool) -> float | None:
    for settling in np.unique(np.round(np.geomspace(task.plant.delay + 1, 2000.0, 80))):
        for gains in candidates(task, float(settling), 0.05):
            certificate = task.check(gains)
            if settles(certificate, float(settling)) and (certificate.accepted or not robust):
                return float(settling)
    return None


def _slower(task: Task, settling: float, overshoot: float) -> float | None:
    """A longer settling that is accepted on the whole confidence region; the search knows none, so try a few."""
    for factor in (1.5, 2.5, 5.0):
        longer = float(math.ceil(factor * settling))
        for gains in candidates(task, longer, overshoot):
            certificate = task.check(gains)
            if settles(certificate, longer) and certificate.accepted:
                return longer
    return None


def _other_kind(task: Task, settling: float, overshoot: float) -> str:
    """Offer state feedback: it knows the commands under way, so it often does what P, PI and PID cannot."""
    if task.controller == "state":
        return ""
    state = replace(task, controller="state", feed_forward=0.0)
    for gains in candidates(state, settling, overshoot):
        certificate = state.check(gains)
        if settles(certificate, settling) and certificate.accepted:
            return f"state feedback does in {settling:g}"
    return ""
