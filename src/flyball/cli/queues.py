"""flyball queues: list the channels of a broker."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json, table


def command(
    url: Annotated[str, typer.Argument(help="Broker URL, such as sqlite:///events.db or amqp://localhost/.")],
    json: JsonOption = False,
) -> None:
    """List a broker's queues and logs with kind, partitions, depth and age of the oldest message."""
    from flyball.brokers import ChannelInfo, connect

    async def read_channels() -> list[ChannelInfo]:
        async with await connect(url, create=False) as broker:
            return sorted(await broker.channels(), key=lambda channel: channel.name)

    channels = [asdict(channel) for channel in asyncio.run(read_channels())]
    if json:
        print_json(channels)
    elif channels:
        header = ("name", "kind", "partitions", "depth", "oldest age s")
        typer.echo(table([tuple(channel.values()) for channel in channels], header=header))
    else:
        note("the broker has no queues and no logs")
