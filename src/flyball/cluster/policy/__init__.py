"""Every decision of a clustered queue, pure: the twin runs exactly these.

step            one event → the new state and what is to be done
events          what happens; decisions: what is to be done; reasons: why
rules           thresholds, the mode, and what needs no approval
state           nodes, sessions, free hosts, moves under way, proposals
election        which node gets a client (R1 to R4)
provisioning    how many nodes (R5, R6), and a verdict on that
apportionment   how many clients each node should have; balancing: the fewest moves to that
exchange        messages between queues; exchange_flow: how fast; evacuation: everything off a node
repair          after a node was lost
plans           what one change does; proposals: changes that can be approved; review: from wanted to done
management      a round of the manager; requests: what operators ask; succession: what the next manager has
work, measuring what clients report, and what follows for each node
capacity        C_i and the ratio of producers and consumers, estimated from measurements

The names here are those that the twin needs; other code imports from the modules.
"""

from flyball.cluster.policy.apportionment import distance
from flyball.cluster.policy.balancing import measure_imbalance
from flyball.cluster.policy.capacity import CapacityEstimator, CapacitySample, CapacityState
from flyball.cluster.policy.decisions import AddNode, Decision, MarkNode, MoveMessages, MoveSession, RemoveNode
from flyball.cluster.policy.events import (
    Event,
    Join,
    Leave,
    MessagesMoved,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    SessionMoved,
    Tick,
)
from flyball.cluster.policy.rules import ORIGINAL, Kind, Rules
from flyball.cluster.policy.state import Host, Node, Role, Session, State, Status
from flyball.cluster.policy.step import step

__all__ = [
    "ORIGINAL",
    "AddNode",
    "CapacityEstimator",
    "CapacitySample",
    "CapacityState",
    "Decision",
    "Event",
    "Host",
    "Join",
    "Kind",
    "Leave",
    "MarkNode",
    "MessagesMoved",
    "MoveMessages",
    "MoveSession",
    "Node",
    "NodeAdded",
    "NodeBack",
    "NodeLost",
    "Reading",
    "RemoveNode",
    "Role",
    "Rules",
    "Session",
    "SessionMoved",
    "State",
    "Status",
    "Tick",
    "distance",
    "measure_imbalance",
    "step",
]
