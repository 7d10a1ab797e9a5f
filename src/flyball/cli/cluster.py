"""flyball cluster: create a cluster, see where its clients and messages are and why, and change it."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli import cluster_changes
from flyball.cli.cluster_access import (
    AutoOption,
    ClusterArgument,
    LeastOption,
    ModeOption,
    MostOption,
    NodeArgument,
    StoreArgument,
    list_options,
    open_cluster,
    show_time,
)
from flyball.cli.output import JsonOption, check_out_folder, note, print_json, table
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
    ("grow", cluster_changes.grow),
    ("shrink", cluster_changes.shrink),
    ("set", cluster_changes.configure),
    ("delete", cluster_changes.delete),
):
    app.command(_name)(_command)


@app.command("create")
def create(
    store: StoreArgument,
    cluster: ClusterArgument,
    node: Annotated[list[str], typer.Option(help="NAME=URL of a node; repeat it for each.")],
    queue: Annotated[str | None, typer.Option(help="Its queue; by default the name of the cluster.")] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(help="NAME=CLIENTS that a node serves well; by default it is measured. May be repeated."),
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="NAME=URL of a broker to grow into; may be repeated.")
    ] = None,
    min_nodes: LeastOption = None,
    max_nodes: MostOption = None,
    process: Annotated[
        Path | None, typer.Option(help="Folder for RabbitMQ nodes that are started on this host to grow.")
    ] = None,
    add_command: Annotated[
        str | None, typer.Option(help="Command that adds {node} and prints its URL as the last line.")
    ] = None,
    remove_command: Annotated[str | None, typer.Option(help="Command that removes {node}.")] = None,
    mode: ModeOption = None,
    auto: AutoOption = None,
) -> None:
    """Create a cluster in a store, which is made if it does not exist; the brokers of its nodes must run."""
    from flyball.cluster.cluster_store import create_cluster
    from flyball.cluster.config import ClusterConfig

    nodes, hosts = _parse_nodes("--node", node), _parse_nodes("--host", host or [])
    for name, clients in map(_parse_pair, capacity or ()):
        chosen = nodes.get(name) or hosts.get(name)
        if chosen is None or not clients.isdecimal():
            raise InvalidValue(
                f"--capacity must be NODE=CLIENTS, a node that is named by --node or --host, got {name}={clients}"
            )
        chosen["capacity"] = int(clients)
    options: dict[str, Any] = {
        **list_options(mode, auto, min_nodes, max_nodes),
        "name": cluster,
        "queue": queue or "",
        "nodes": nodes,
        "hosts": hosts,
        "provisioner": _parse_provisioner(process, add_command, remove_command),
    }
    create_cluster(store, ClusterConfig(**options))
    note(f"cluster {cluster} has {len(nodes)} nodes; use it as cluster://{cluster}?store={store}")


@app.command("describe")
def describe(store: StoreArgument, cluster: ClusterArgument, json: JsonOption = False) -> None:
    """Say what a cluster consists of, who manages it, and what was decided last, with the reasons."""
    from flyball.brokers.url import BrokerUrl

    with open_cluster(store, cluster) as records:
        setup, record, leader = records.setup(), records.read().state, records.leader()
    config, rules = setup.config, setup.config.rules
    members = record.state.nodes or config.nodes
    started = {name: (url, members[name]) for name, url in record.urls.items() if name in members}
    known = {**{name: (node.url, node) for name, node in config.known_nodes.items()}, **started}
    nodes = [
        (
            name,
            "member" if name in members else "free host",
            str(BrokerUrl.parse(url)),
            node.capacity,
            node.zone or "-",
        )
        for name, (url, node) in known.items()
    ]
    header = ("node", "use", "url", "capacity", "zone")
    if json:
        print_json(
            {
                "cluster": config.name,
                "queue": config.queue_name,
                "manager": leader,
                "mode": config.mode,
                "auto": list(config.auto),
                "min_nodes": rules.min_nodes,
                "max_nodes": rules.max_nodes,
                "provisioner": None if config.provisioner is None else config.provisioner.kind,
                "nodes": [dict(zip(header, row, strict=True)) for row in nodes],
                "drains": sorted(setup.drains),
                "history": [asdict(entry) for entry in record.history],
            }
        )
        return
    typer.echo(
        f"{config.name}: the queue {config.queue_name} on {len(members)} nodes, manager {leader or 'none'}, mode "
        f"{config.mode}; a client is gone after {config.session_timeout_s:g} s of silence, a node after "
        f"{config.lost_after_s:g} s"
    )
    if rules.max_nodes > rules.min_nodes:
        started_by = "" if config.provisioner is None else f", further ones by {config.provisioner.kind}"
        typer.echo(f"it has {rules.min_nodes} to {rules.max_nodes} nodes{started_by}")
    shown = [tuple("measured" if each is None else each for each in row) for row in nodes]
    typer.echo("\n" + table(shown, header=header))
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
            "capacity": state.nodes[figures.node].capacity,
            "estimate": record.estimates.get(figures.node),
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
            "–" if row["load"] is None else f"{row['load']:.2f}",
            row["messages"],
            row["verdict"],
        )
        for row in rows
    ]
    typer.echo(
        "\n" + table(shown, header=("node", "producers", "consumers", "x", "y", "load", "messages", "verdict"))
    )
    known = [
        (row["node"], "–" if row["capacity"] is None else row["capacity"], row["estimate"])
        for row in rows
        if row["estimate"] not in (None, "configured")
    ]
    if known:
        typer.echo("\n" + table(known, header=("node", "capacity", "how it is known")))
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
    if node.status is Status.ADDING:
        return "is being started"
    if node.status is Status.LOST:
        waiting = f"; {clients} clients wait for another node" if clients else ""
        return f"lost: what is on its disk returns with it{waiting}"
    if node.mark is Mark.MAINTENANCE:
        if clients or node.length != 0:
            return "is being emptied for maintenance"
        return "empty: it can be maintained"
    if node.mark is Mark.SHRINK:
        return "is being emptied, to be removed"
    if node.mark is Mark.RETURNED:
        return "came back: what survived on it is being moved"
    if node.length is None:
        return "has not been asked yet"
    return "serves"


def _parse_nodes(option: str, pairs: list[str]) -> dict[str, dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = {}
    for name, url in map(_parse_pair, pairs):
        if name in nodes:
            raise InvalidValue(f"{option} {name!r} is given twice: name every node differently")
        nodes[name] = {"url": url}
    return nodes


def _parse_provisioner(process: Path | None, add: str | None, remove: str | None) -> dict[str, Any] | None:
    if process is not None and (add is not None or remove is not None):
        raise InvalidValue("--process and --add-command exclude each other: give one of them")
    if process is not None:
        check_out_folder("--process", process)
        return {"kind": "process", "folder": str(process.absolute())}
    if add is None and remove is None:
        return None
    if add is None or remove is None:
        raise InvalidValue("--add-command and --remove-command must be given together")
    return {
        "kind": "command",
        "add": _split("--add-command", add),
        "remove": _split("--remove-command", remove),
    }


def _split(option: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidValue(f"{option} must be a command, got {command!r}: {error}") from None
    if not words:
        raise InvalidValue(f"{option} must be a command, got {command!r}")
    return words


def _parse_pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise InvalidValue(f"a node must be written NAME=VALUE, got {text!r}")
    return name, value
