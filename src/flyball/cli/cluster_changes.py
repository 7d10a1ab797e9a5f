"""flyball cluster propose, approve, reject, stop, grow, shrink, watch, set, delete: what changes in a cluster."""

from __future__ import annotations

import json as json_format
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.cluster_access import (
    AutoOption,
    ClusterArgument,
    LeastOption,
    ModeOption,
    MostOption,
    StoreArgument,
    list_options,
    open_cluster,
    show_time,
)
from flyball.cli.output import JsonOption, note, print_json, table
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.cluster.policy.requests import Action

ProposalArgument = Annotated[
    str, typer.Argument(help="Id of the proposal, as `flyball cluster propose` shows it.")
]

_ANSWER_S = 30.0
"""How long a command waits for the manager's answer."""
_POLL_S = 0.1


def propose(store: StoreArgument, cluster: ClusterArgument, json: JsonOption = False) -> None:
    """List the changes that wait for approval or are being carried out: why, and what they do and cost."""
    from flyball.cluster.descriptions import make_document

    with open_cluster(store, cluster) as records:
        config, record, leader = records.setup().config, records.read().state, records.leader()
    now_s = record.picture.now_s
    proposals = [
        {**make_document(record.state, one), "expires_in_s": max(0.0, one.expires_s - now_s)}
        for one in record.state.proposals.values()
    ]
    if json:
        print_json({"cluster": config.name, "mode": config.mode, "manager": leader, "proposals": proposals})
        return
    if leader is None:
        note(f"no program manages {config.name}: this is what was known at {show_time(record.asked_time_s)}")
    if not proposals:
        note(f"nothing is proposed for cluster {config.name}, whose mode is {config.mode}")
    typer.echo("\n\n".join(map(_show, proposals))) if proposals else None


def _show(proposal: dict[str, Any]) -> str:
    goal, is_pending = proposal["goal"], proposal["stage"] == "pending"
    moves = f"{len(proposal['sessions'])} sessions and {proposal['messages_to_move']} messages move"
    lines = [
        f"{proposal['id']} ({proposal['stage']}): {proposal['change']}",
        f"  why: {proposal['reason']}; it serves goal {goal['rank']}, {goal['name'].replace('_', ' ')}",
        f"  cost: {moves}, about {proposal['duration_s']:.3g} s with "
        f"{100 * proposal['throughput_loss']:.3g} % of the throughput missing",
    ]
    if is_pending:
        lines.append(f"  expires in {proposal['expires_in_s']:.0f} s")
    rows = [
        (node["node"], *(_change(node, key) for key in ("producers", "consumers", "x", "y", "load")))
        for node in proposal["nodes"]
    ]
    return "\n".join([*lines, table(rows, header=("  node", "producers", "consumers", "x", "y", "load"))])


def _change(node: dict[str, Any], key: str) -> str:
    def cell(figures: dict[str, Any] | None) -> str:
        value = None if figures is None else figures[key]
        return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    before, after = cell(node["before"]), cell(node["after"])
    return after if before == after else f"{before} → {after}"


def approve(store: StoreArgument, cluster: ClusterArgument, proposal: ProposalArgument) -> None:
    """Carry a proposal out."""
    ask(store, cluster, "approve", proposal)


def reject(store: StoreArgument, cluster: ClusterArgument, proposal: ProposalArgument) -> None:
    """Do not carry a proposal out, and do not propose the same again for a while."""
    ask(store, cluster, "reject", proposal)


def stop(store: StoreArgument, cluster: ClusterArgument, proposal: ProposalArgument) -> None:
    """Begin nothing more of a proposal that is being carried out; moves that have begun end."""
    ask(store, cluster, "stop", proposal)


def ask(store: str, cluster: str, action: Action, subject: str) -> None:
    """Ask the manager and print its answer; a refusal is an error."""
    with open_cluster(store, cluster) as records:
        if records.leader() is None:
            raise InvalidValue(f"cluster {cluster!r} has no manager now: start a program that uses it")
        stored = records.ask(action, subject)
        deadline_s, known = time.monotonic() + _ANSWER_S, None
        while True:
            known = records.read(known)
            answer = known.state.find_answer(stored.request.id)
            if answer is not None:
                break
            if time.monotonic() > deadline_s and records.withdraw(stored):
                raise InvalidValue(
                    f"the manager of {cluster!r} did not answer in {_ANSWER_S:g} s: the request is withdrawn"
                )
            time.sleep(_POLL_S)
    if not answer.is_granted:
        raise InvalidValue(answer.text)
    typer.echo(answer.text)


def watch(
    store: StoreArgument,
    cluster: ClusterArgument,
    seconds: Annotated[float, typer.Option(min=0, max=1e9, help="How long to watch.")] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line.")] = False,
) -> None:
    """Print decisions with their reasons as they happen."""
    with open_cluster(store, cluster) as records:
        known = records.read()
        seen, end_s = known.state.decided, time.monotonic() + seconds
        note(f"watching cluster {cluster} for {seconds:g} s")
        while time.monotonic() < end_s:
            time.sleep(min(_POLL_S, max(0.0, end_s - time.monotonic())))
            known = records.read(known)
            record = known.state
            fresh = record.decided - seen
            if fresh > len(record.history):
                note(f"{fresh - len(record.history)} decisions came too fast to be shown")
            for entry in record.history[-fresh:] if fresh > 0 else ():
                shown = {**asdict(entry), "time": show_time(entry.time_s)}
                typer.echo(
                    json_format.dumps(shown) if json else f"{shown['time']}  {entry.action}  ({entry.reason})"
                )
            seen = record.decided


def grow(store: StoreArgument, cluster: ClusterArgument) -> None:
    """Add a node: one that was to be removed, a free host, or one that the provisioner starts."""
    ask(store, cluster, "grow", "")


def shrink(
    store: StoreArgument,
    cluster: ClusterArgument,
    node: Annotated[str, typer.Argument(help="Node to remove; by default one with few clients.")] = "",
) -> None:
    """Remove a node: its clients and messages move to the others, then it is stopped."""
    ask(store, cluster, "shrink", node)


def configure(
    store: StoreArgument,
    cluster: ClusterArgument,
    mode: ModeOption = None,
    auto: AutoOption = None,
    min_nodes: LeastOption = None,
    max_nodes: MostOption = None,
) -> None:
    """Change the mode of a cluster, which changes need no approval, or how many nodes it may have."""
    options = list_options(mode, auto, min_nodes, max_nodes)
    if not options:
        raise InvalidValue("nothing is to be set: give --mode, --auto, --min-nodes or --max-nodes")
    with open_cluster(store, cluster) as records:
        config = records.configure(**options).config
    kinds, rules = ", ".join(config.auto) or "none", config.rules
    note(
        f"cluster {cluster}: mode {config.mode}, {rules.min_nodes} to {rules.max_nodes} nodes, "
        f"without approval: {kinds}"
    )


def delete(store: StoreArgument, cluster: ClusterArgument) -> None:
    """Forget a cluster that no program uses, and stop the nodes that it started."""
    import asyncio

    from flyball.cluster.provisioners import make_provisioner

    with open_cluster(store, cluster) as records:
        provisioner, started = make_provisioner(records.setup().config), sorted(records.read().state.urls)
        if records.leader() is None and provisioner is not None:
            for node in started:
                asyncio.run(provisioner.remove(node))
        records.delete()
    stopped = f"; stopped: {', '.join(started)}" if started else ""
    note(f"cluster {cluster} is deleted{stopped}; what is at its nodes stays there")
