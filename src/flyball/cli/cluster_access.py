"""What the commands of `flyball cluster` share: their arguments, and the way to a cluster's records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from flyball.cluster.cluster_store import ClusterStore

StoreArgument: TypeAlias = Annotated[
    str, typer.Argument(help="Store of the cluster, sqlite:///cluster.db or postgresql://user@host/database.")
]
ClusterArgument: TypeAlias = Annotated[str, typer.Argument(help="Name of the cluster.")]
NodeArgument: TypeAlias = Annotated[str, typer.Argument(help="Name of the node.")]
ModeOption: TypeAlias = Annotated[
    str | None, typer.Option(help="advise, shadow or on: whether changes are proposed, logged or carried out.")
]
AutoOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A kind of change that needs no approval, such as node_lost; may be repeated; none: all do."
    ),
]

LeastOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="The fewest nodes; by default all --node.")
]
MostOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=1000, help="The most nodes; by default all --node and --host.")
]


@contextmanager
def open_cluster(url: str, cluster: str) -> Iterator[ClusterStore]:
    from flyball.cluster.cluster_store import ClusterStore
    from flyball.store.url import open_database

    with closing(open_database(url, create=False)) as database:
        records = ClusterStore(database, cluster)
        records.setup()  # a name that is not there is refused now
        yield records


def list_options(
    mode: str | None, auto: list[str] | None, min_nodes: int | None, max_nodes: int | None
) -> dict[str, Any]:
    """Keys of `ClusterConfig` from options that were given."""
    options = {"mode": mode, "min_nodes": min_nodes, "max_nodes": max_nodes}
    found: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if auto:
        found["auto"] = [] if auto == ["none"] else auto
    return found


def show_time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
