"""All that a clustered queue's decisions depend on: nodes, sessions, free hosts, moves under way, proposals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.cluster.policy.proposals import Proposal, ProposalKey
    from flyball.cluster.policy.rules import Kind

Role: TypeAlias = Literal["producer", "consumer"]

_UNKNOWN = 1_000_000
"""Stands for the capacity of each node while none is known: equal shares, and no node is full."""


class Status(StrEnum):
    ADDING = "adding"
    UP = "up"
    LOST = "lost"


class Mark(StrEnum):
    """Why a node gets no new clients."""

    SHRINK = "shrink"
    MAINTENANCE = "maintenance"
    RETURNED = "returned"
    """It was lost and came back: first what survived on it is moved."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker node with one queue of the cluster. `capacity` is C_i in clients, None while it is not known."""

    name: str
    capacity: int | None = None
    is_configured: bool = False
    """The capacity was configured: measured ones do not replace it."""
    status: Status = Status.UP
    mark: Mark | None = None
    zone: str = ""
    length: int | None = 0
    """l_i, messages that wait; None while it is not known."""
    waiting: int = 0
    """Consumers that wait for a message."""
    rate_per_s: float | None = None
    """Messages delivered a second."""
    is_saturated: bool = False
    """Its clients wait for it: it gets no messages of other queues."""
    change: str | None = None
    """The proposal that adds it."""
    asked_s: float = 0.0
    """When it was asked for."""
    is_replaced: bool = False
    """It was lost, and needs no replacement or has one."""
    is_permanent: bool = False
    """Its broker runs whether the cluster uses it or not."""
    is_used: bool = False
    """A client has a connection there, be it one that it is about to close."""
    empty_since_s: float | None = None
    """Since when it has been seen without messages and connections."""

    def __post_init__(self) -> None:
        _check_capacity(self.name, self.capacity)

    @property
    def is_member(self) -> bool:
        """Whether clients may be elected to it."""
        return self.status is Status.UP and self.mark is None


@dataclass(frozen=True, slots=True)
class Host:
    """Where a node can be added. `is_ready`: a broker runs there already, so that it serves at once."""

    name: str
    capacity: int | None = None
    zone: str = ""
    is_ready: bool = False
    retry_s: float = -math.inf
    is_configured: bool = True
    """False: the capacity, if there is one, was measured when the host was in use."""

    def __post_init__(self) -> None:
        _check_capacity(self.name, self.capacity)


@dataclass(frozen=True, slots=True)
class Session:
    """A client's connection. While it moves, `target` is where to, and it counts there."""

    id: str
    role: Role
    node: str
    zone: str = ""
    target: str | None = None
    change: str | None = None
    """The proposal that moves it."""
    started_s: float | None = None
    """When the move began; None: it waits for its turn."""
    retry_s: float = -math.inf

    @property
    def place(self) -> str:
        return self.node if self.target is None else self.target


@dataclass(frozen=True, slots=True)
class Transfer:
    """Messages on their way from one node to another."""

    count: int
    change: str
    started_s: float


Pair: TypeAlias = tuple[str, str]
"""Source and target."""


@dataclass(frozen=True)
class State:
    nodes: Mapping[str, Node] = field(default_factory=dict)
    sessions: Mapping[str, Session] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    transfers: Mapping[Pair, Transfer] = field(default_factory=dict)
    proposals: Mapping[str, Proposal] = field(default_factory=dict)
    """Those that wait for approval, and those that are being carried out."""
    finished: tuple[Proposal, ...] = ()
    """The latest of the others, oldest first."""
    refused: Mapping[ProposalKey, float] = field(default_factory=dict)
    """What was rejected (or is shadowed), until when it is not proposed again."""
    held: Mapping[Kind, float] = field(default_factory=dict)
    """Kinds of change that an operator stopped, until when they need approval."""
    drains: frozenset[str] = frozenset()
    """Nodes to be emptied for maintenance."""
    next_id: int = 1
    overloaded_since_s: float | None = None
    underloaded_since_s: float | None = None
    unbalanced_since_s: float | None = None
    is_short: bool = False
    """A node is needed and no host is free; reported once."""

    @cached_property
    def members(self) -> tuple[Node, ...]:
        """Nodes to which clients may be elected, by name."""
        return tuple(node for _, node in sorted(self.nodes.items()) if node.is_member)

    @cached_property
    def producers(self) -> Counter[str]:
        """N_i of each node."""
        return Counter(session.place for session in self.sessions.values() if session.role == "producer")

    @cached_property
    def consumers(self) -> Counter[str]:
        """M_i of each node."""
        return Counter(session.place for session in self.sessions.values() if session.role == "consumer")

    @cached_property
    def moving(self) -> tuple[Session, ...]:
        """Sessions that move or wait for their turn."""
        return tuple(session for session in self.sessions.values() if session.target is not None)

    @cached_property
    def capacities(self) -> dict[str, int]:
        """C_i of every node: as configured or measured, else the mean of the others, else `_UNKNOWN`."""
        known = [node.capacity for node in self.nodes.values() if node.capacity is not None]
        mean = max(1, round(sum(known) / len(known))) if known else _UNKNOWN
        return {name: mean if node.capacity is None else node.capacity for name, node in self.nodes.items()}

    @property
    def knows_capacity(self) -> bool:
        return not self.nodes or any(node.capacity is not None for node in self.nodes.values())

    @cached_property
    def capacity(self) -> int:
        """Cc: of the nodes to which clients may be elected."""
        return sum(self.capacities[node.name] for node in self.members)

    def is_up(self, name: str) -> bool:
        """Whether there is such a node and it serves its clients, marked or not."""
        node = self.nodes.get(name)
        return node is not None and node.status is Status.UP

    @cached_property
    def known_capacity(self) -> int:
        """Cc without capacities that are only assumed: those do not allow a removal."""
        return sum(node.capacity or 0 for node in self.members)

    @property
    def clients(self) -> int:
        """Nc + Mc, those of lost and marked nodes included: they need a place, too."""
        return len(self.sessions)

    @property
    def load(self) -> float | None:
        """Lc; None while no capacity is known."""
        return compute_load(self.clients, self.capacity) if self.knows_capacity else None


def compute_load(clients: int, capacity: int) -> float:
    """L = clients / capacity; without capacity the load of any client is infinite.

    >>> compute_load(6, 12), compute_load(1, 0), compute_load(0, 0)
    (0.5, inf, inf)
    """
    return clients / capacity if capacity else math.inf


def as_host(node: Node, retry_s: float = -math.inf) -> Host:
    """The host of a node that is removed, with what is known of its capacity."""
    return Host(node.name, node.capacity, node.zone, node.is_permanent, retry_s, node.is_configured)


def _check_capacity(name: str, capacity: int | None) -> None:
    whole = isinstance(capacity, int) and not isinstance(capacity, bool)
    if capacity is not None and not (whole and capacity >= 1):
        raise InvalidValue(f"capacity of the node {name!r} must be a number of clients >= 1, got {capacity!r}")
