"""The state of a group as its coordinator keeps it, durable from one leader to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.groups.policy.group import Queue
from flyball.groups.policy.load_estimates import LoadState
from flyball.groups.policy.reports import HandOvers
from flyball.groups.policy.rules import GroupRules

HISTORY = 50
"""Plans that are remembered."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A session may read a queue. `generation`: the round of the grant; a later owner has a larger one."""

    member: str
    token: int
    generation: int


@dataclass(frozen=True, slots=True)
class Revocation:
    """A grant that was taken back in `round`. The queue is free when its owner says so, or its session is over."""

    grant: Grant
    round: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What counts of a member for a plan. `queues`: its list, for `by-config`."""

    topics: frozenset[str]
    rack: str | None = None
    queues: frozenset[Queue] = frozenset()


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """One plan in the history of a group.

    `joined` and `left` name some of the members that did, for people and for advice.
    `moves`: queues that pass from one live member to another; `fewest_moves`: what balance alone would need, None
    where loads decide. Of the hand-overs until the next plan, `clean` and `forced` are as members report them, and
    `expired` are queues whose owner's session ended while it owned them.
    """

    round: int
    time_s: float
    reason: str
    members: int
    queues: int
    moves: int
    fewest_moves: int | None
    balance_degree: float
    stickiness: float
    clean: int = 0
    forced: int = 0
    expired: int = 0
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupState:
    """`round` grows with every change that members or a next leader must know.

    `targets` is the plan: who shall read each queue. `grants` says who may read it now, `revocations` who may
    still be reading it; a queue is in at most one of the two. `members` and `topics`: what the plan was made for.
    `rules` are those of the leader. `tokens`: the newest session of each member that has one. `reported`: what the
    newest sessions have counted in hand-overs. `load`: what the strategy `load` remembers.
    """

    round: int = 0
    targets: Mapping[Queue, str] = field(default_factory=dict)
    grants: Mapping[Queue, Grant] = field(default_factory=dict)
    revocations: Mapping[Queue, Revocation] = field(default_factory=dict)
    members: Mapping[str, Subscription] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    rules: GroupRules = field(default_factory=GroupRules)
    tokens: Mapping[str, int] = field(default_factory=dict)
    reported: Mapping[str, HandOvers] = field(default_factory=dict)
    planned_s: float | None = None
    history: tuple[PlanRecord, ...] = ()
    load: LoadState = field(default_factory=LoadState)

    def granted_to(self, member: str, token: int) -> dict[Queue, int]:
        """The queues that a session may read, with their generations."""
        return {
            queue: grant.generation
            for queue, grant in self.grants.items()
            if grant.member == member and grant.token == token
        }

    @property
    def settled(self) -> bool:
        """Every queue is with the member that the plan names."""
        return not self.revocations and all(
            queue in self.grants and self.grants[queue].member == member for queue, member in self.targets.items()
        )
