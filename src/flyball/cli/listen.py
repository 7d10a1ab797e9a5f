"""flyball publish --listen: accept messages over HTTP into the outbox, and send them to the broker."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import typer

from flyball.cli.output import note, print_json, table
from flyball.futures import wait_at_most


def serve(
    url: str,
    channel: str,
    address: str,
    outbox: str,
    declare: str | None,
    max_body_bytes: int,
    max_outbox_bytes: int | None,
    seconds: float | None,
    token: str | None,
    *,
    json: bool,
) -> None:
    """Serve until a signal comes or the time is over; unconfirmed messages stay in the outbox."""
    from flyball.brokers.port import Kind
    from flyball.errors import InvalidValue
    from flyball.publisher.http import Listener
    from flyball.publisher.options import OutboxConfig
    from flyball.publisher.publisher import Publisher, PublisherStats

    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidValue(f"--listen must be HOST:PORT, such as 127.0.0.1:8080, got {address!r}")

    async def run() -> PublisherStats:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        kind: Kind | None = None if declare is None else "log" if declare == "log" else "queue"
        publisher = Publisher(
            url,
            channel=channel,
            outbox=OutboxConfig(outbox, max_outbox_bytes),
            when_full="error",
            declare=kind,
            close_timeout_s=5.0,
        )
        listener = Listener(publisher, host.strip("[]"), int(port), max_body_bytes=max_body_bytes, token=token)
        async with publisher:
            async with listener:
                note(f"listening on http://{host}:{listener.port}/publish, outbox {outbox}")
                if token is None and host not in ("127.0.0.1", "localhost", "[::1]"):
                    note(f"everybody who can reach {host} may publish; --token restricts it")
                with suppress(TimeoutError):
                    await wait_at_most(stop.wait(), seconds)
            return publisher.stats

    document = {"channel": channel, **asyncio.run(run()).counts()}
    print_json(document) if json else typer.echo(table(list(document.items())))


def choose_token(token: str | None, file: Path | None) -> str | None:
    """Return the token of `--token`, its environment variable, or `--token-file`."""
    from flyball.errors import InvalidValue

    if file is None:
        return token
    if token is not None:
        raise InvalidValue(
            "--token (or FLYBALL_LISTEN_TOKEN) and --token-file exclude each other; give one of them"
        )
    try:
        return file.read_bytes().decode("latin-1").strip()
    except OSError as error:
        raise InvalidValue(f"cannot read {str(file)!r}: {error.strerror}") from None
