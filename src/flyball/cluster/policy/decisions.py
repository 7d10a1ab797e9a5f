"""What is to be done, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flyball.cluster.policy.proposals import Proposal
from flyball.cluster.policy.reasons import Reason
from flyball.cluster.policy.state import Mark, Role


@dataclass(frozen=True, slots=True)
class Elect:
    """Connect the session to this node."""

    session: str
    role: Role
    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refuse:
    """There is no node for the session: try again later."""

    session: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class AddNode:
    """Start a node there (or just use it, where a broker runs already) and report `NodeAdded` or `AddFailed`."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class MarkNode:
    node: str
    mark: Mark
    reason: Reason


@dataclass(frozen=True, slots=True)
class UnmarkNode:
    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Nothing is left on it: it can be stopped."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class MoveSession:
    """Move the session and report `SessionMoved` or `MoveFailed`."""

    session: str
    source: str
    target: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class MoveMessages:
    """Move so many messages and report `MessagesMoved`."""

    source: str
    target: str
    count: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReportShortage:
    """A node is needed and no host is free."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Propose:
    """A change is proposed; its decisions follow when it is carried out."""

    proposal: Proposal

    @property
    def reason(self) -> Reason:
        return self.proposal.reason


@dataclass(frozen=True, slots=True)
class CloseProposal:
    """A proposal ended."""

    proposal: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an operator: why a proposal cannot be approved, rejected or stopped."""

    proposal: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to an operator's request, for the command that made it."""

    request: str
    action: str
    is_granted: bool
    reason: Reason


Decision: TypeAlias = (
    Elect
    | Refuse
    | AddNode
    | MarkNode
    | UnmarkNode
    | RemoveNode
    | MoveSession
    | MoveMessages
    | ReportShortage
    | Propose
    | CloseProposal
    | Answer
    | Reply
)
