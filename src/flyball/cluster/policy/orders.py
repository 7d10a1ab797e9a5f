"""An operator's order for a node more or less: a proposal that is approved already.

What would undo it needs approval for as long as a proposal lives, or the cluster would do so by itself.
"""

from __future__ import annotations

from dataclasses import replace

from flyball.cluster.policy.decisions import Answer, Decision, Propose
from flyball.cluster.policy.proposals import Wanted, make_proposal
from flyball.cluster.policy.provisioning import plan_growth, plan_shrink
from flyball.cluster.policy.reasons import Code, Reason
from flyball.cluster.policy.review import start
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Node, State, Status


def grow(rules: Rules, state: State, now_s: float) -> tuple[State, list[Decision]]:
    nodes = sum(node.status is not Status.LOST for node in state.nodes.values())
    wanted = plan_growth(rules, state, now_s, Reason(Code.ASKED, "an operator asked for another node"))
    if wanted is None:
        full = nodes >= rules.max_nodes
        why = f"there are {nodes} nodes, and max_nodes is {rules.max_nodes}" if full else "no host is free"
        return state, _refuse("grow", Code.NO_FREE_HOST, f"no node can be added: {why}")
    return _carry_out(rules, state, wanted, now_s, Kind.SHRINK)


def shrink(rules: Rules, state: State, name: str, now_s: float) -> tuple[State, list[Decision]]:
    """Remove the node, or one of those that have the fewest clients."""
    if name and (name not in state.nodes or not state.nodes[name].is_member):
        known = ", ".join(node.name for node in state.members)
        return state, _refuse("shrink", Code.NO_NODE, f"{name} serves no clients now; {known} do")
    if len(state.members) <= rules.min_nodes:
        text = f"no node can be removed: {len(state.members)} serve, and min_nodes is {rules.min_nodes}"
        return state, _refuse("shrink", Code.RIGHT_SIZE, text)

    def rank(node: Node) -> tuple[int, int, str]:
        return state.producers[node.name] + state.consumers[node.name], node.length or 0, node.name

    def fits(node: Node) -> bool:
        return state.clients <= state.known_capacity - (node.capacity or 0)

    candidates = [state.nodes[name]] if name else sorted(state.members, key=rank)
    node = next(filter(fits, candidates), None)
    if node is None:
        rest = max(state.known_capacity - (one.capacity or 0) for one in candidates)
        what = name or "any of the nodes"
        text = f"{state.clients} clients do not fit without {what}: the others have room for {rest}"
        return state, _refuse("shrink", Code.OVERLOADED, text)
    return _carry_out(rules, state, plan_shrink(rules, state, node, Code.ASKED), now_s, Kind.GROW)


def _carry_out(
    rules: Rules, state: State, wanted: Wanted, now_s: float, opposite: Kind
) -> tuple[State, list[Decision]]:
    if rules.mode != "on":
        text = f"the mode is {rules.mode}: nothing is carried out; set the mode to on"
        return state, _refuse(wanted.kind, Code.MODE, text)
    proposal = replace(make_proposal(rules, state, wanted, now_s), is_approved=True)
    held = {kind: until_s for kind, until_s in state.held.items() if kind is not wanted.kind}
    held[opposite] = now_s + rules.expiry_s
    state = replace(state, next_id=state.next_id + 1, held=held)
    state, decisions = start(state, proposal, now_s)
    return state, [Propose(proposal), *decisions]


def _refuse(what: str, code: Code, text: str) -> list[Decision]:
    return [Answer(what, Reason(code, text))]
