"""Moves of sessions that bring every node within one client of its share, as few as possible."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.cluster.policy.apportionment import apportion, distance
from flyball.cluster.policy.plans import Plan, SessionMove
from flyball.cluster.policy.proposals import Wanted
from flyball.cluster.policy.reasons import Code, Goal, Reason
from flyball.cluster.policy.rules import Kind
from flyball.cluster.policy.state import Role, State


@dataclass(frozen=True, slots=True)
class Imbalance:
    """`clients`: how far the farthest node is from its share, of producers or consumers."""

    clients: float
    overloaded: tuple[str, ...]
    """Nodes above their capacity though the cluster has room."""

    @property
    def is_tolerable(self) -> bool:
        return self.clients < 1.0 and not self.overloaded


def measure_imbalance(state: State) -> Imbalance:
    names = [node.name for node in state.members]
    capacities = [state.capacities[name] for name in names]
    producers = [state.producers[name] for name in names]
    consumers = [state.consumers[name] for name in names]
    fits = state.knows_capacity and sum(producers) + sum(consumers) <= sum(capacities)
    overloaded = tuple(
        name
        for name, capacity, n, m in zip(names, capacities, producers, consumers, strict=True)
        if fits and n + m > capacity
    )
    return Imbalance(max(distance(capacities, producers), distance(capacities, consumers)), overloaded)


def can_balance(state: State) -> bool:
    """While sessions move, the next balance is not known yet."""
    return len(state.members) > 1 and not state.moving


def plan_balance(state: State, imbalance: Imbalance) -> Wanted | None:
    """Which sessions move: of each node the ones that joined last."""
    names = [node.name for node in state.members]
    producers = [state.producers[name] for name in names]
    consumers = [state.consumers[name] for name in names]
    wanted = apportion([state.capacities[name] for name in names], producers, consumers)
    moves = (
        *_pair(state, "producer", names, producers, wanted[0]),
        *_pair(state, "consumer", names, consumers, wanted[1]),
    )
    if not moves:
        return None
    if imbalance.overloaded:
        goal, code = Goal.NO_OVERLOAD, Code.OVERLOADED
        cause = f"{', '.join(imbalance.overloaded)} has more clients than it can serve, and others have room"
    else:
        goal, code = Goal.BALANCE, Code.UNBALANCED
        cause = f"a node is {imbalance.clients:.3g} clients away from its share"
    return Wanted(Kind.BALANCE, goal, Reason(code, f"{cause}: {len(moves)} sessions move"), Plan(sessions=moves))


def _pair(state: State, role: Role, names: list[str], owned: list[int], wanted: list[int]) -> list[SessionMove]:
    surplus = {name: n - w for name, n, w in zip(names, owned, wanted, strict=True) if n > w}
    targets = [name for name, n, w in zip(names, owned, wanted, strict=True) for _ in range(w - n)]
    moves: list[SessionMove] = []
    latest = (session for session in reversed(list(state.sessions.values())) if session.role == role)
    for session in latest:
        if surplus.get(session.place, 0):
            surplus[session.place] -= 1
            moves.append(SessionMove(session.id, session.place, targets[len(moves)]))
    return moves
