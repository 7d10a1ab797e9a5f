"""What the decisions of a clustered queue are made with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from flyball.control.controllers.common import check_between, check_choice, check_whole
from flyball.control.record import MODES, Mode
from flyball.errors import InvalidValue


class Kind(StrEnum):
    """The kinds of change, in the order in which they are considered."""

    NODE_LOST = "node_lost"
    """Elect nodes for the clients of a lost node, and replace it."""
    GROW = "grow"
    """Add a node, or use one again that was to be removed."""
    DRAIN = "drain"
    """Empty a node for maintenance."""
    NODE_BACK = "node_back"
    """Move what survived on a node that came back."""
    SHRINK = "shrink"
    """Mark a node for removal, and move its clients and messages."""
    BALANCE = "balance"
    """Move sessions after unlucky leaves."""
    EXCHANGE = "exchange"
    """Move messages from long queues to short ones."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Load Lc is the number of clients over the capacity of all nodes that are not marked for removal.

    The cluster grows when a client joins at Lc >= `grow_at`, or when Lc > 1 for `grow_after_s`. It shrinks when
    the clients would load the rest to at most `shrink_below`, for `shrink_after_s`: between the two lies the band
    in which nothing changes.
    """

    mode: Mode = "on"
    auto: frozenset[Kind] = frozenset(Kind)
    """What is carried out without approval."""
    grow_at: float = 1.0
    shrink_below: float = 0.8
    grow_after_s: float = 5.0
    shrink_after_s: float = 60.0
    balance_after_s: float = 5.0
    """Unlucky leaves are collected for so long before sessions move."""
    min_nodes: int = 1
    max_nodes: int = 1000
    drain_at_once: bool = True
    """Move the clients of a node that is marked for removal; False: wait until the last one leaves."""
    capacity_band: float = 0.1
    """A measured capacity is adopted when it differs from the present one by more than this part of it."""
    moves_at_once: int = 4
    """Sessions of healthy nodes that move at the same time."""
    move_s: float = 0.5
    """How long a session is expected to pause while it moves."""
    move_timeout_s: float = 10.0
    allowed_length: int = 10_000
    """A queue that is longer hands its surplus over."""
    least_exchange: int = 100
    """A smaller surplus stays."""
    pull: int = 500
    """Messages that an empty queue asks for, for each consumer that waits."""
    exchange_per_s: float = 3000.0
    """How fast messages are expected to move."""
    exchange_timeout_s: float = 60.0
    add_s: float = 6.0
    """How long a new node is expected to need."""
    add_timeout_s: float = 120.0
    release_after_s: float = 0.0
    """For how long a node is seen empty before it is removed."""
    retry_s: float = 5.0
    """Pause after a move failed, and after a node could not be added."""
    expiry_s: float = 600.0
    """How long a proposal can be approved, and a rejected one is not repeated."""

    def __post_init__(self) -> None:
        check_choice(self, "mode", MODES)
        unknown = sorted(map(str, self.auto - frozenset(Kind)))
        if unknown:
            raise InvalidValue(f"Rules.auto may have {', '.join(Kind)}, got {unknown[0]!r}")
        check_between(self, "grow_at", 0.0, 1.0, low_open=True)
        check_between(self, "shrink_below", 0.0, 1.0)
        if self.shrink_below > self.grow_at:
            raise InvalidValue(
                f"Rules.shrink_below must be <= grow_at ({self.grow_at:g}), or the cluster would grow and shrink "
                f"in turn, got {self.shrink_below:g}"
            )
        for name in (
            "grow_after_s",
            "shrink_after_s",
            "balance_after_s",
            "retry_s",
            "release_after_s",
            "capacity_band",
        ):
            check_between(self, name, 0.0, math.inf, high_open=True)
        for name in (
            "move_s",
            "move_timeout_s",
            "exchange_per_s",
            "exchange_timeout_s",
            "add_s",
            "add_timeout_s",
            "expiry_s",
        ):
            check_between(self, name, 0.0, math.inf, low_open=True, high_open=True)
        for name in ("min_nodes", "max_nodes", "moves_at_once", "least_exchange", "pull"):
            check_whole(self, name, 1)
        check_whole(self, "allowed_length", 0)
        if self.max_nodes < self.min_nodes:
            raise InvalidValue(f"Rules.max_nodes must be >= min_nodes ({self.min_nodes}), got {self.max_nodes}")

    def acts(self, kind: Kind) -> bool:
        """Whether this kind of change needs no approval."""
        return self.mode == "on" and kind in self.auto


ORIGINAL = Rules(
    auto=frozenset({Kind.GROW, Kind.SHRINK, Kind.EXCHANGE}),
    shrink_below=1.0,
    shrink_after_s=0.0,
    drain_at_once=False,
)
"""The published rules: no band, no session moves, no repair."""
