"""Load: queues have weights, members have capacities; the most utilised member decides.

Ranked goals: the largest utilisation is small; few queues move. The weight of a queue is arrival rate × service
time, a member's capacity its work per second of busy time, so both are known at low load too. Which queues to
put together is a packing problem, which cannot be solved exactly in reasonable time; this is a local search: it
moves a queue away from the most utilised member, or exchanges it for a lighter one, as long as that lowers the
larger of the two utilisations by more than the weights' errors explain.

A member within `band` of the mean utilisation, or beyond it by no more than noise explains, is left alone. The
band is absolute: a relative one is crossed by jitter at low load. Moves that are under way count as done: pass
owners as they will be. A queue that is too heavy for every member is reported, since moving it cannot help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball.errors import InvalidValue
from flyball.groups.policy.group import Claims, Group, Queue, owners_by_claim
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools
from flyball.groups.policy.plan import Plan, make_plan, name_owners, number_owners

Floats = NDArray[np.float64]

_TRIGGER = 0.75
"""of the confidence: a member beyond the band by this is looked at; whether a move pays is tested with all of
it.
"""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """When to leave members alone, and how much to move at once.

    `band`: tolerated utilisation above the mean. `max_moves`: in one decision. `confidence`: how many standard
    errors a difference must exceed. `move_cost`: the gain of one move, at least. `settle`: a decision that moves
    anything brings members to within this part of the band, so that they do not stay at its edge.
    """

    band: float = 0.05
    max_moves: int | None = 4
    confidence: float = 3.0
    move_cost: float = 1e-12
    settle: float = 1.0


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """`allowed[q, m]`: member m reads queue q. Owner −1: free.

    `errors`: standard errors of the weights, infinite: it must not move. `capacity_errors`: relative standard
    errors of the capacities; None: they are exact.
    """

    weights: Floats
    errors: Floats
    owners: Ints
    capacities: Floats
    allowed: Bools
    capacity_errors: Floats | None = None


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """The owners after the moves, the queues that move, in order, and queues too heavy for any member."""

    owners: Ints
    moved: tuple[int, ...]
    too_heavy: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A plan with the members' utilisations, and queues that are too heavy for any member."""

    plan: Plan[Queue]
    utilisation: Mapping[str, float]
    too_heavy: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    gain: float
    moves: tuple[tuple[int, int], ...]
    """Queue and target."""


def assign_load(group: Group, claims: Claims, weights: Mapping[Queue, float], limits: LoadLimits) -> LoadPlan:
    """Assign every queue that some member reads by weight; `limits.max_moves` None: as many moves as pay."""
    if not group.members:
        raise InvalidValue("members must name at least one member, got none")
    members, queues = sorted(group.members), group.queues()
    by_claim = owners_by_claim(group, claims)
    loaded = LoadedGroup(
        weights=np.array([weights[queue] for queue in queues], float),
        errors=np.zeros(len(queues)),
        owners=number_owners(queues, by_claim, members),
        capacities=np.array([group.members[member].capacity for member in members]),
        allowed=np.array(
            [[queue[0] in group.members[member].topics for member in members] for queue in queues], bool
        ).reshape(len(queues), len(members)),
    )
    decision = decide_load(loaded, limits)
    assignment = name_owners(queues, decision.owners, members)
    used = utilisations(loaded, decision.owners)
    return LoadPlan(
        make_plan(assignment, claims.queues, by_claim, len(queues)),
        dict(zip(members, used.tolist(), strict=True)),
        tuple(queues[index] for index in decision.too_heavy),
    )


def decide_load(group: LoadedGroup, limits: LoadLimits) -> LoadDecision:
    """Give free queues to members, the heaviest first, and then move queues as long as it pays."""
    owners = place_free(group)
    moved: list[int] = []
    left = group.owners.size * group.capacities.size if limits.max_moves is None else limits.max_moves
    fair = _fair(group)
    while left > 0:
        errors = utilisation_errors(group, owners)
        # The first move of a decision needs a reason that noise hardly explains; the others follow from it.
        tolerated = fair + (
            limits.settle * limits.band if moved else limits.band + limits.confidence / 2.0 * errors
        )
        step = next(_steps(group, owners, np.broadcast_to(tolerated, errors.shape), limits, left), None)
        if step is None:
            break
        for queue, target in step.moves:
            owners[queue] = target
            moved.append(queue)
        left -= len(step.moves)
    least = np.where(group.allowed, group.weights[:, None] / group.capacities, np.inf).min(axis=1)
    too_heavy = np.flatnonzero((owners >= 0) & (least > fair + limits.band))
    return LoadDecision(owners, tuple(dict.fromkeys(moved)), tuple(too_heavy.tolist()))


def utilisations(group: LoadedGroup, owners: Ints) -> Floats:
    """Work that arrives at each member / work that it can do."""
    owned = owners >= 0
    loads = np.bincount(owners[owned], group.weights[owned], minlength=group.capacities.size)
    return loads / group.capacities


def place_free(group: LoadedGroup) -> Ints:
    """Give each free queue, the heaviest first, to the member that it makes least utilised."""
    owners = group.owners.copy()
    used = utilisations(group, owners)
    free = np.flatnonzero((owners < 0) & group.allowed.any(axis=1))
    for queue in free[np.argsort(-group.weights[free], kind="stable")].tolist():
        after = np.where(group.allowed[queue], used + group.weights[queue] / group.capacities, np.inf)
        owners[queue] = target = int(after.argmin())
        used[target] = after[target]
    return owners


def _fair(group: LoadedGroup) -> float:
    return float(group.weights[group.allowed.any(axis=1)].sum() / group.capacities.sum())


def utilisation_errors(group: LoadedGroup, owners: Ints) -> Floats:
    """Standard errors of `utilisations`. A queue whose weight has no error yet may be wrong by all of it."""
    owned = owners >= 0
    errors = np.where(np.isfinite(group.errors), group.errors, group.weights)
    squares = np.bincount(owners[owned], errors[owned] ** 2, minlength=group.capacities.size)
    found: Floats = np.sqrt(squares) / group.capacities
    if group.capacity_errors is not None:
        found = np.hypot(found, utilisations(group, owners) * group.capacity_errors)
    return found


def _steps(group: LoadedGroup, owners: Ints, tolerated: Floats, limits: LoadLimits, left: int) -> Iterator[_Step]:
    """The best step of each member that is utilised too much, the most utilised first."""
    state = _Utilisation(utilisations(group, owners), utilisation_errors(group, owners))
    for member in np.argsort(-state.used, kind="stable").tolist():
        if state.used[member] <= tolerated[member]:
            continue
        queues = np.flatnonzero((owners == member) & (group.weights > 0) & np.isfinite(group.errors))
        if not queues.size:
            continue
        step = _best_move(group, state, member, queues, limits)
        if step is None and left >= 2:
            step = _best_exchange(group, owners, state, member, queues, limits)
        if step is not None:
            yield step


@dataclass(frozen=True, slots=True)
class _Utilisation:
    used: Floats
    errors: Floats


def _best_move(
    group: LoadedGroup, state: _Utilisation, member: int, queues: Ints, limits: LoadLimits
) -> _Step | None:
    used = state.used
    shares = group.weights[queues][:, None] / group.capacities
    larger = np.maximum(used[member] - shares[:, [member]], used + shares)
    larger = np.where(group.allowed[queues], larger, np.inf)
    # Where the target might be more utilised than this member was, the gain is below the noise.
    errors = np.hypot(
        np.hypot(state.errors[member], state.errors), group.errors[queues][:, None] / group.capacities
    )
    larger[used[member] - used - shares <= limits.confidence * errors] = np.inf
    larger[:, member] = np.inf
    targets = larger.argmin(axis=1)
    gains = used[member] - larger.min(axis=1)
    gains = np.where(gains > limits.move_cost, gains, -np.inf)
    best = int(gains.argmax())
    if gains[best] == -np.inf:
        return None
    return _Step(float(gains[best]), ((int(queues[best]), int(targets[best])),))


def _best_exchange(
    group: LoadedGroup, owners: Ints, state: _Utilisation, member: int, queues: Ints, limits: LoadLimits
) -> _Step | None:
    """The best exchange of one of the member's queues for a lighter one of somebody else."""
    movable = np.isfinite(group.errors)
    others = np.flatnonzero((owners >= 0) & (owners != member) & group.allowed[:, member] & movable)
    if not others.size:
        return None
    used, holders = state.used, owners[others]
    difference = group.weights[queues][:, None] - group.weights[others]
    larger = np.maximum(
        used[member] - difference / group.capacities[member],
        used[holders] + difference / group.capacities[holders],
    )
    errors = np.hypot(group.errors[queues][:, None], group.errors[others]) / group.capacities[holders]
    errors = np.hypot(np.hypot(state.errors[member], state.errors[holders]), errors)
    gains = used[member] - larger
    gaps = used[member] - used[holders] - difference / group.capacities[holders]
    possible = (
        (difference > 0)
        & group.allowed[queues][:, holders]
        & (gains > 2.0 * limits.move_cost)
        & (gaps > limits.confidence * errors)
    )
    gains = np.where(possible, gains, -np.inf)
    best = int(gains.argmax())
    if gains.flat[best] == -np.inf:
        return None
    mine, other = divmod(best, others.size)
    target = int(holders[other])
    return _Step(float(gains.flat[best]), ((int(queues[mine]), target), (int(others[other]), member)))
