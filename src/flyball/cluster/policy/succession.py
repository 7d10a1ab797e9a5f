"""What a new manager goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flyball.cluster.policy.management import Picture
from flyball.cluster.policy.proposals import Proposal, Stage
from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.review import close
from flyball.cluster.policy.state import Node, Session, State


def take_over(picture: Picture, nodes: Mapping[str, Node], now_s: float) -> Picture:
    """The picture of a successor: proposals, approvals and moves of sessions go on, transfers of messages ended
    with the manager that had them under way.

    `nodes` are the members of a cluster that has had no manager yet. Times may be those of another clock, and
    nobody could answer while there was no manager: that time does not count.
    """
    state = _shift(picture.state, now_s - picture.now_s)
    sessions = {
        id: one if one.started_s is None else replace(one, started_s=now_s) for id, one in state.sessions.items()
    }
    interrupted = {transfer.change for transfer in state.transfers.values()}
    state = replace(state, nodes=dict(state.nodes or nodes), sessions=sessions, transfers={})
    for proposal in list(state.proposals.values()):
        if proposal.stage is Stage.RUNNING and proposal.id in interrupted and not _moves_sessions(state, proposal):
            text = "the manager that moved its messages is gone; what is left is proposed again"
            state, _ = close(state, proposal, Reason(Code.INTERRUPTED, text))
    return Picture(state, now_s=now_s)


def _moves_sessions(state: State, proposal: Proposal) -> bool:
    return any(session.change == proposal.id for session in state.moving)


def _shift(state: State, seconds: float) -> State:
    """The state with all times later."""

    def shift(time_s: float | None) -> float | None:
        return None if time_s is None else time_s + seconds

    def shift_session(one: Session) -> Session:
        return replace(one, started_s=shift(one.started_s), retry_s=one.retry_s + seconds)

    return replace(
        state,
        nodes={name: replace(node, asked_s=node.asked_s + seconds) for name, node in state.nodes.items()},
        sessions={id: shift_session(session) for id, session in state.sessions.items()},
        hosts={name: replace(host, retry_s=host.retry_s + seconds) for name, host in state.hosts.items()},
        proposals={
            id: replace(one, created_s=one.created_s + seconds, expires_s=one.expires_s + seconds)
            for id, one in state.proposals.items()
        },
        refused={key: until_s + seconds for key, until_s in state.refused.items()},
        held={kind: until_s + seconds for kind, until_s in state.held.items()},
        overloaded_since_s=shift(state.overloaded_since_s),
        underloaded_since_s=shift(state.underloaded_since_s),
        unbalanced_since_s=shift(state.unbalanced_since_s),
    )
