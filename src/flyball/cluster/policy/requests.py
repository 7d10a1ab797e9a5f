"""What an operator asks for, and the answer in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from flyball.cluster.policy.decisions import Answer, Decision, Propose, Reply
from flyball.cluster.policy.events import Approve, Event, Grow, Reject, Shrink, Stop
from flyball.cluster.policy.proposals import Stage
from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.rules import Rules
from flyball.cluster.policy.state import State
from flyball.cluster.policy.step import step
from flyball.control.controllers.common import check_choice

Action: TypeAlias = Literal["approve", "reject", "stop", "grow", "shrink"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True, slots=True)
class Request:
    """`subject` is the proposal, or the node to be removed."""

    id: str
    action: Action
    subject: str

    def __post_init__(self) -> None:
        check_choice(self, "action", ACTIONS)


def answer(rules: Rules, state: State, request: Request, now_s: float) -> tuple[State, tuple[Decision, ...]]:
    """Do what is asked for, as far as it can be done; the last decision is the reply."""
    state, decisions = step(rules, state, _make_event(request, now_s))
    refusals = [one.reason for one in decisions if isinstance(one, Answer)]
    action = f"{request.action} {request.subject}".strip()
    if refusals:
        return state, (*decisions, Reply(request.id, action, False, refusals[0]))
    return state, (*decisions, Reply(request.id, action, True, _explain(rules, state, request, decisions)))


def _make_event(request: Request, now_s: float) -> Event:
    match request.action:
        case "approve":
            return Approve(now_s, request.subject)
        case "reject":
            return Reject(now_s, request.subject)
        case "stop":
            return Stop(now_s, request.subject)
        case "grow":
            return Grow(now_s)
        case "shrink":
            return Shrink(now_s, request.subject)


def _explain(rules: Rules, state: State, request: Request, decisions: Iterable[Decision]) -> Reason:
    subject = request.subject
    if request.action in ("grow", "shrink"):
        proposal = next(one.proposal for one in decisions if isinstance(one, Propose))
        nodes = [*proposal.plan.add, *proposal.plan.unmark, *(name for name, _ in proposal.plan.mark)]
        what = "is added" if request.action == "grow" else "is emptied and removed"
        other = "shrinking" if request.action == "grow" else "growing"
        text = f"{nodes[0]} {what} ({proposal.id}); {other} needs approval for {rules.expiry_s:g} s"
        return Reason(Code.ASKED, text)
    if request.action == "approve":
        running = state.proposals.get(subject)
        is_running = running is not None and running.stage is Stage.RUNNING
        return Reason(Code.APPROVED, f"{subject} {'is being' if is_running else 'was'} carried out")
    code = Code.REJECTED if request.action == "reject" else Code.STOPPED
    finished = next((one for one in reversed(state.finished) if one.id == subject), None)
    if finished is not None and finished.outcome is not None and finished.outcome.code is Code.REJECTED:
        return Reason(code, f"{subject} is rejected: the same is not proposed again for {rules.expiry_s:g} s")
    kind = subject.rpartition("-")[0]
    return Reason(code, f"nothing more of {subject} begins, and {kind} needs approval for {rules.expiry_s:g} s")
