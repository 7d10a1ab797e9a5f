"""What a coordinator needs of a group's configuration, without anything that reads files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball.groups.policy.consistent_hash import VIRTUAL_NODES


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How a group is planned, and when; the fields are those of `GroupConfig` and its options."""

    strategy: str = "sticky"
    coalesce_s: float = 1.0
    rebalance_s: float = 20.0
    racks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    band: float = 0.05
    max_moves: int = 4
    brokers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rooms: tuple[str, ...] = ()
    inner: str = "averagely"
    virtual_nodes: int = VIRTUAL_NODES
