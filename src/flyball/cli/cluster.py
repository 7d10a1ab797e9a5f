"""flyball cluster: create a cluster, see where its clients and messages are and why, and change it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli import cluster_changes
from flyball.cli.cluster_access import (
    AutoOption,
    ClusterArgument,
    ModeOption,
    NodeArgument,
    StoreArgument,
    list_options,
    open_cluster,
    show_time,
)
from flyball.cli.output import JsonOption, note, print_json, table
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.cluster.policy.state import Node, State

app = typer.Typer(no_args_is_help=True)

for _name, _command in (
    ("propose", cluster_changes.propose),
    ("approve", cluster_changes.approve),
    ("reject", cluster_changes.reject),
    ("stop", cluster_changes.stop),
    ("watch", cluster_changes.watch),
    ("set", cluster_changes.configure),
):
    app.command(_name)(_command)


@app.command("create")
def create(
    store: StoreArgument,
    cluster: ClusterArgument,
    node: Annotated[list[str], typer.Option(help="NAME=URL of a node; repeat it for each.")],
    queue: Annotated[str | None, typer.Option(help="Its queue; by default the name of the cluster.")] = None,
    capacity: Annotated[
        list[str] | None, typer.Option(help="NAME=CLIENTS that a node serves well (100); may be repeated.")
    ] = None,
    mode: ModeOption = None,
    auto: AutoOption = None,
) -> None:
    """Create a cluster in a store, which is made if it does not exist; the brokers of its nodes must run."""
    from flyball.cluster.cluster_store import create_cluster
    from flyball.cluster.config import ClusterConfig

    nodes: dict[str, Any] = {}
    for name, url in map(_parse_pair, node):
        if name in nodes:
            raise InvalidValue(f"--node {name!r} is given twice: name every node differently")
        nodes[name] = {"url": url}
    for name, clients in map(_parse_pair, capacity or ()):
        if name not in nodes or not clients.isdecimal():
            raise InvalidValue(
                f"--capacity must be NODE=CLIENTS, a node that is named by --node, got {name}={clients}"
            )
        nodes[name]["capacity"] = int(clients)
    create_cluster(store, ClusterConfig(name=cluster, queue=queue or "", nodes=nodes, **list_options(mode, auto)))
    note(f"cluster {cluster} has {len(nodes)} nodes; use it as cluster://{cluster}?store={store}")


@app.command("describe")
def describe(store: StoreArgument, cluster: ClusterArgument, json: JsonOption = False) -> None:
    """Say what a cluster consists of, who manages it, and what was decided last, with the reasons."""
    from flyball.brokers.url import BrokerUrl

    with open_cluster(store, cluster) as records:
        setup, record, leader = records.setup(), records.read().state, records.leader()
    config = setup.config
    nodes = [
        (name, str(BrokerUrl.parse(node.url)), node.capacity, node.zone or "-")
        for name, node in config.nodes.items()
    ]
    if json:
        header = ("node", "url", "capacity", "zone")
        print_json(
            {
                "cluster": config.name,
                "queue": config.queue_name,
                "manager": leader,
                "mode": config.mode,
                "auto": list(config.auto),
                "nodes": [dict(zip(header, row, strict=True)) for row in nodes],
                "drains": sorted(setup.drains),
                "history": [asdict(entry) for entry in record.history],
            }
        )
        return
    typer.echo(
        f"{config.name}: the queue {config.queue_name} on {len(nodes)} nodes, manager {leader or 'none'}, mode "
        f"{config.mode}; a client is gone after {config.session_timeout_s:g} s of silence, a node after "
        f"{config.lost_after_s:g} s"
    )
    typer.echo("\n" + table(nodes, header=("node", "url", "capacity", "zone")))
    if record.history:
        rows = [(show_time(entry.time_s), entry.action, entry.reason) for entry in record.history]
        typer.echo("\n" + table(rows, header=("time", "decision", "reason")))


@app.command("status")
def status(store: StoreArgument, cluster: ClusterArgument, json: JsonOption = False) -> None:
    """Show clients, shares, load and messages of every node, with a verdict on each and on how many they are."""
    from flyball.cluster.policy.proposals import list_figures
    from flyball.cluster.policy.provisioning import judge_size

    with open_cluster(store, cluster) as records:
        config, record, leader = records.setup().config, records.read().state, records.leader()
    state = record.state
    verdict = judge_size(config.rules, state)
    rows = [
        {
            **asdict(figures),
            "messages": state.nodes[figures.node].length,
            "verdict": _judge(state, state.nodes[figures.node]),
        }
        for figures in list_figures(state)
    ]
    if json:
        asked = show_time(record.asked_time_s) if rows else None
        print_json(
            {
                "cluster": config.name,
                "manager": leader,
                "asked": asked,
                "moving": len(state.moving),
                "size": {"verdict": verdict.size.value, "reason": verdict.reason.text},
                "proposals": list(state.proposals),
                "nodes": rows,
            }
        )
        return
    if not rows:
        note(f"cluster {config.name} has had no manager yet: start a program that uses it")
        return
    lost = (
        "" if leader is not None else f"; no program manages it: this was seen at {show_time(record.asked_time_s)}"
    )
    typer.echo(
        f"{config.name}: {state.producers.total()} producers, {state.consumers.total()} consumers, "
        f"{len(state.moving)} moving, {sum(node.length or 0 for node in state.nodes.values())} messages{lost}"
    )
    shown = [
        (
            row["node"],
            row["producers"],
            row["consumers"],
            f"{row['x']:.2f}",
            f"{row['y']:.2f}",
            f"{row['load']:.2f}",
            row["messages"],
            row["verdict"],
        )
        for row in rows
    ]
    typer.echo(
        "\n" + table(shown, header=("node", "producers", "consumers", "x", "y", "load", "messages", "verdict"))
    )
    typer.echo(f"\nnumber of nodes: {verdict.size.value} ({verdict.reason.text})")
    if state.proposals:
        typer.echo(f"proposed or being carried out: {', '.join(state.proposals)}; see `flyball cluster propose`")


@app.command("drain")
def drain(store: StoreArgument, cluster: ClusterArgument, node: NodeArgument) -> None:
    """Empty a node for maintenance: its clients, then its messages, move to the others."""
    with open_cluster(store, cluster) as records:
        records.drain(node)
        leader = records.leader()
    note(
        f"{node} gives its clients and messages to the others; `flyball cluster status` says when it is empty"
        + ("" if leader is not None else "; the cluster has no manager now, it happens when it has one")
    )


@app.command("resume")
def resume(store: StoreArgument, cluster: ClusterArgument, node: NodeArgument) -> None:
    """Use a node again that was drained."""
    with open_cluster(store, cluster) as records:
        records.drain(node, wanted=False)
    note(f"{node} gets clients again")


def _judge(state: State, node: Node) -> str:
    from flyball.cluster.policy.state import Mark, Status

    clients = state.producers[node.name] + state.consumers[node.name]
    if node.status is Status.LOST:
        waiting = f"; {clients} clients wait for another node" if clients else ""
        return f"lost: what is on its disk returns with it{waiting}"
    if node.mark is Mark.MAINTENANCE:
        if clients or node.length != 0:
            return "is being emptied for maintenance"
        return "empty: it can be maintained"
    if node.mark is Mark.RETURNED:
        return "came back: what survived on it is being moved"
    if node.length is None:
        return "has not been asked yet"
    return "serves"


def _parse_pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise InvalidValue(f"a node must be written NAME=VALUE, got {text!r}")
    return name, value
