"""flyball queues: the channels of a broker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json, table


def command(
    url: Annotated[str, typer.Argument(help="Broker, for example sqlite:///events.db or amqp://localhost/.")],
    json: JsonOption = False,
) -> None:
    """List a broker's queues and logs: kind, partitions, messages in them, age of the oldest."""
    from flyball.brokers import ChannelInfo, connect

    async def ask() -> list[ChannelInfo]:
        async with await connect(url, create=False) as broker:
            return sorted(await broker.channels(), key=lambda channel: channel.name)

    channels = [asdict(channel) for channel in asyncio.run(ask())]
    if json:
        print_json(channels)
    elif channels:
        header = ("name", "kind", "partitions", "depth", "oldest age s")
        typer.echo(table([tuple(channel.values()) for channel in channels], header=header))
    else:
        note("no queues and no logs there")
