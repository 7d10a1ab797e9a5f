"""What members report about themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from flyball.groups.policy.group import Queue

Stage: TypeAlias = Literal["active", "away", "leaving"]
"""`away`: it stopped and may return under the same id; its queues wait for it as long as its session lasts.
`away` and `leaving` are final: such a session takes no queue any more."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What a reader measured at one queue lately; None: nothing was read yet.

    `arrival_per_s` is the rate at which messages were received, `service_s` the mean time for which one was
    handled, without what it waited for others, `busy` the share of the time in which at least one was in
    flight, `residence_p99_s` how long 99 of 100 were in flight. `depth` is the number of messages that wait in
    the queue, where the broker says it: a member that is too slow receives less than arrives, and the growth of
    the depth is the rest.
    """

    arrival_per_s: float | None = None
    service_s: float | None = None
    busy: float | None = None
    residence_p99_s: float | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class HandOvers:
    """Queues that were released: `clean` after all in flight was settled, `forced` with some that went back."""

    clean: int = 0
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A heartbeat: what a member's session subscribes to, what it owns, and what it measured.

    `topics` has the number of queues of each topic, as the member's broker says; None: it is not known yet.
    `owned` has the generation of each grant, from before the first message is taken until after the last one is
    settled. `round`: the newest state of the coordinator that it had applied. `switches`: its broker hands queues
    over by itself. `queues`: its list, for `by-config`. `hand_overs`: since its session began.
    """

    topics: Mapping[str, int | None]
    owned: Mapping[Queue, int] = field(default_factory=dict)
    round: int = 0
    stage: Stage = "active"
    rack: str | None = None
    window: int = 1
    switches: bool = False
    loads: Mapping[Queue, QueueLoad] = field(default_factory=dict)
    queues: frozenset[Queue] = frozenset()
    hand_overs: HandOvers = HandOvers()


@dataclass(frozen=True, slots=True)
class Session:
    """A session as read from the store. Of several sessions of a member the one with the largest token counts.

    `alive`: it has not expired; whether it did is for the store's clock to say. An expired session never returns.
    """

    member: str
    token: int
    alive: bool
    report: Report
