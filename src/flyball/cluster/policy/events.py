"""What happens to a clustered queue, each with its time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from flyball.cluster.policy.state import Role
from flyball.control.controllers.common import check_whole
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Reading:
    """What was measured at a node; None: not known."""

    length: int | None = None
    waiting: int = 0
    rate_per_s: float | None = None
    capacity: int | None = None
    is_saturated: bool = False
    """Its clients wait for it: it has nothing to spare for the exchange of messages."""
    is_used: bool = False
    """A client has a connection there, be it one that it is about to close."""

    def __post_init__(self) -> None:
        for name, low in (("length", 0), ("capacity", 1)):
            if getattr(self, name) is not None:
                check_whole(self, name, low)
        check_whole(self, "waiting", 0)
        rate = self.rate_per_s
        if rate is not None and not (math.isfinite(rate) and rate >= 0.0):
            raise InvalidValue(f"Reading.rate_per_s must be a number >= 0, got {rate!r}")


@dataclass(frozen=True, slots=True)
class Join:
    """A client asks for a node. A session that is known gets the same one, as far as it may."""

    now_s: float
    session: str
    role: Role
    zone: str = ""

    def __post_init__(self) -> None:
        if self.role not in ("producer", "consumer"):
            raise InvalidValue(f"role of a session must be producer or consumer, got {self.role!r}")


@dataclass(frozen=True, slots=True)
class Leave:
    """A client left, or its session expired."""

    now_s: float
    session: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nodes without a reading keep the last one."""

    now_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeLost:
    now_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A lost node answers again; how many messages survived on it is known by a reading."""

    now_s: float
    node: str


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A node that was asked for serves."""

    now_s: float
    node: str
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class AddFailed:
    """A node that was asked for could not be added."""

    now_s: float
    node: str


@dataclass(frozen=True, slots=True)
class SessionMoved:
    now_s: float
    session: str
    node: str


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """The session is where it was."""

    now_s: float
    session: str
    node: str
    """Where it should have moved to."""


@dataclass(frozen=True, slots=True)
class MessagesMoved:
    """A transfer ended, with `count` messages confirmed at the target."""

    now_s: float
    source: str
    target: str
    count: int


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator wants the node emptied, for maintenance."""

    now_s: float
    node: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The maintenance of the node is over."""

    now_s: float
    node: str


@dataclass(frozen=True, slots=True)
class Approve:
    now_s: float
    proposal: str


@dataclass(frozen=True, slots=True)
class Reject:
    now_s: float
    proposal: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Begin nothing more of a proposal that is being carried out."""

    now_s: float
    proposal: str


@dataclass(frozen=True, slots=True)
class Grow:
    """An operator wants another node."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Shrink:
    """An operator wants a node removed; "": one that the cluster can do without."""

    now_s: float
    node: str = ""


Event: TypeAlias = (
    Join
    | Leave
    | Tick
    | NodeLost
    | NodeBack
    | NodeAdded
    | AddFailed
    | SessionMoved
    | MoveFailed
    | MessagesMoved
    | Drain
    | Resume
    | Approve
    | Reject
    | Stop
    | Grow
    | Shrink
)
