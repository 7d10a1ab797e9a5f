"""flyball broker: start and stop local brokers for trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json, table
from flyball.cli.signals import sigterm_as_exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball.servers import Server

app = typer.Typer(no_args_is_help=True)


@app.command("up")
def up(
    kind: Annotated[str, typer.Argument(metavar="rabbitmq|kafka", help="Kind of broker to start.")],
    nodes: Annotated[int, typer.Option(help="Number of brokers, each with its own ports and data.")] = 1,
    port: Annotated[
        int | None,
        typer.Option(help="Port for clients, such as 5672 or 9092 (default: a free one)."),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="4",
            help="Version of RabbitMQ; it is fetched if it is not installed (default: the installed one).",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start brokers on this machine; they run until `flyball broker down`."""
    from flyball.servers import state

    with sigterm_as_exit():
        servers = state.up(kind, nodes, state.state_folder(), port, version, note)
    _show(servers, json)


@app.command("down")
def down(json: JsonOption = False) -> None:
    """Stop the brokers that `up` started in this folder, and remove their data."""
    from flyball.servers import state

    stopped = state.down(state.state_folder())
    if json:
        print_json({"stopped": stopped})
    else:
        typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


@app.command("status")
def status(json: JsonOption = False) -> None:
    """List the brokers that `up` started in this folder, and whether they run."""
    from flyball.servers import state

    _show(state.status(state.state_folder()), json)


def _show(servers: Sequence[Server], as_json: bool) -> None:
    if as_json:
        document = [
            {
                "name": server.name,
                "running": bool(server.pids),
                "pids": list(server.pids),
                "url": server.url,
                "urls": dict(server.urls),
            }
            for server in servers
        ]
        print_json({"servers": document})
        return
    if not servers:
        typer.echo("no brokers were started in this folder; start one with: flyball broker up rabbitmq")
        return
    rows = [
        (server.name, "yes" if server.pids else "no", what, url)
        for server in servers
        for what, url in server.urls.items()
    ]
    typer.echo(table(rows, header=("name", "running", "for", "url")))
