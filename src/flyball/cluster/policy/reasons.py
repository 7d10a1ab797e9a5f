"""Why something is decided: a code that programs compare, and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Code(StrEnum):
    """One code for each reason. Values are stored: they may be added to, and are never changed."""

    FARTHEST_FROM_SHARE = "farthest_from_share"
    """The elected node lacks the most clients of this kind."""
    ALREADY_CONNECTED = "already_connected"
    LEAST_LOADED = "least_loaded"
    """Every node is full: the least loaded one serves the client."""
    NO_NODE = "no_node"
    NO_FREE_HOST = "no_free_host"
    OVERLOADED = "overloaded"
    """R5: the clients need more capacity than there is."""
    UNDERLOADED = "underloaded"
    """R6: the clients would fit without this node."""
    RIGHT_SIZE = "right_size"
    UNKNOWN_CAPACITY = "unknown_capacity"
    MAINTENANCE = "maintenance"
    NODE_LOST = "node_lost"
    NODE_BACK = "node_back"
    UNBALANCED = "unbalanced"
    TOO_FEW_CONSUMERS = "too_few_consumers"
    SURPLUS = "surplus"
    """A queue is longer than allowed."""
    STARVING = "starving"
    """Consumers wait at an empty queue."""
    EMPTY = "empty"
    """A node marked for removal has neither clients nor messages."""
    NEEDED = "needed"
    """A node that came back is empty, and the cluster needs it."""
    APPROVED = "approved"
    REJECTED = "rejected"
    STOPPED = "stopped"
    EXPIRED = "expired"
    REPLACED = "replaced"
    """The situation changed: another proposal takes its place."""
    WITHDRAWN = "withdrawn"
    """The situation changed: nothing asks for it any more."""
    CARRIED_OUT = "carried_out"
    INTERRUPTED = "interrupted"
    """The manager that moved its messages is gone."""
    ASKED = "asked"
    """An operator asked for it."""
    SHADOW = "shadow"
    """The mode is shadow: it would have been carried out."""
    MODE = "mode"
    """The mode allows no change."""
    UNKNOWN_PROPOSAL = "unknown_proposal"


class Goal(IntEnum):
    """What asks for a change; a smaller number takes precedence."""

    NO_OVERLOAD = 1
    NO_LOSS = 2
    BALANCE = 3
    FEW_MOVES = 4
    LOCALITY = 5
    FEW_NODES = 6


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    text: str
