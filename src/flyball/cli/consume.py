"""flyball consume: take messages from a queue or a subscription, with rate and latency figures."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import typer

from flyball.cli.output import JsonOption, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball.brokers import Delivery, Receiver
    from flyball.cli.load import Stop, Tally

# How long one wait for messages lasts at most. A wait is never cancelled: what the broker handed over in that
# moment would be neither acknowledged nor given back.
_WAIT_S = 0.2
_MOST_AT_ONCE = 500


def command(
    url: Annotated[
        str | None, typer.Argument(help="Broker, for example sqlite:///events.db or amqp://localhost/.")
    ] = None,
    channel: Annotated[
        str | None, typer.Argument(help="Queue; with --group a channel or a pattern such as 'city.*.load'.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Run the consumer that this file describes.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Read as a member of this group (needed for logs).")] = None,
    start: Annotated[
        str, typer.Option("--from", help="Where a new group begins: earliest or latest.")
    ] = "earliest",
    count: Annotated[int | None, typer.Option(min=0, help="Stop after this many messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this time.")] = None,
    idle: Annotated[
        float | None, typer.Option(min=0, help="Stop when nothing came for this many seconds.")
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Most messages taken and not yet acknowledged.")] = 100,
    out: Annotated[str | None, typer.Option(help="Write the bodies, a line each; '-' is standard output.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live rate line.")] = False,
    json: JsonOption = False,
) -> None:
    """Take messages and acknowledge each after it was written; what was not acknowledged goes back.

    Latency counts from the time of the event, which is when `flyball publish` handed a message over. With
    --config, messages go to the handler that the file names and the consumer holds the goal that it gives.
    """
    if config is not None:
        from flyball.cli.consume_config import run_config

        given = {"URL": url, "CHANNEL": channel, "--group": group, "--count": count, "--idle": idle, "--out": out}
        run_config(config, seconds, quiet, json, [name for name, value in given.items() if value is not None])
        return
    from flyball.brokers import connect
    from flyball.cli.load import Stop, Tally, figures_table
    from flyball.errors import InvalidValue

    if url is None or channel is None:
        raise InvalidValue(
            "say which broker and which queue: flyball consume URL CHANNEL, or --config CONFIG.toml"
        )
    if json and out == "-":
        raise InvalidValue("--json and --out - both write to standard output: give --out a file")
    where: Literal["earliest", "latest"]
    if start == "earliest":
        where = "earliest"
    elif start == "latest":
        where = "latest"
    else:
        raise InvalidValue(f"--from has to be earliest or latest, not {start!r}")

    async def run(target: BinaryIO | None) -> tuple[_Consuming, int]:
        stop = Stop()
        async with await connect(url, create=False) as broker:
            receiver = (
                await broker.receiver(channel, window=window)
                if group is None
                else await broker.subscribe(channel, group, window=window, start=where)
            )
            work = _Consuming(receiver, target, stop, Tally("received", quiet), count, idle)
            stop.after(seconds)
            try:
                await work.run()
            finally:
                await receiver.close()
        return work, 0 if count is None or work.tally.messages >= count else stop.exit_code

    with ExitStack() as files:
        work, exit_code = asyncio.run(run(_target(out, files)))
    document = {
        "channel": channel,
        "group": group,
        "received": work.tally.messages,
        "acked": work.acked,
        "redelivered": work.redelivered,
        "duplicates": work.duplicates,
        **work.tally.figures(work.took_s),
    }
    if json:
        print_json(document)
    else:
        typer.echo(figures_table(document), err=out == "-")
    raise typer.Exit(exit_code)


def _target(out: str | None, files: ExitStack) -> BinaryIO | None:
    from flyball.errors import InvalidValue

    if out is None:
        return None
    if out == "-":
        return sys.stdout.buffer
    try:
        return files.enter_context(Path(out).open("wb"))
    except OSError as error:
        raise InvalidValue(f"cannot write {out!r}: {error.strerror}") from None


class _Consuming:
    """One run: receive, write, acknowledge, count."""

    def __init__(
        self,
        receiver: Receiver,
        target: BinaryIO | None,
        stop: Stop,
        tally: Tally,
        count: int | None,
        idle: float | None,
    ) -> None:
        from flyball.brokers.core.dedup import FinishedIds

        self._receiver = receiver
        self._target = target
        self._stop = stop
        self._count = count
        self._idle = idle
        self._finished = FinishedIds(max_age_s=float("inf"))
        self.tally = tally
        self.acked = self.redelivered = self.duplicates = 0

    @property
    def took_s(self) -> float:
        """From the first message to the last: waiting for a publisher to start is no property of the broker."""
        first, last = self.tally.first_s, self.tally.last_s
        return 0.0 if first is None or last is None else last - first

    async def run(self) -> None:
        live = asyncio.create_task(self.tally.live())
        try:
            await self._run()
        finally:
            live.cancel()
            await asyncio.gather(live, return_exceptions=True)

    async def _run(self) -> None:
        last_s = time.monotonic()
        while not self._stop:
            now_s = time.monotonic()
            left_s = [_WAIT_S]
            if self._idle is not None:
                left_s.append(last_s + self._idle - now_s)
            most = _MOST_AT_ONCE if self._count is None else min(_MOST_AT_ONCE, self._count - self.tally.messages)
            if min(left_s) <= 0 or most <= 0:
                return
            deliveries = await self._receiver.receive(most, timeout_s=min(left_s))
            if deliveries:
                last_s = time.monotonic()
                await self._handle(deliveries)
                await asyncio.sleep(0)  # signals get their turn also where a broker never makes us wait

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        now_s, wall_s = time.monotonic(), time.time()
        if self._target is not None:
            self._target.write(b"".join(delivery.message.body + b"\n" for delivery in deliveries))
            self._target.flush()
        self.tally.add(len(deliveries), sum(len(delivery.message.body) for delivery in deliveries))
        for delivery in deliveries:
            self.redelivered += delivery.redelivered
            self.duplicates += self._finished.seen(delivery.message.id, now_s)
            if delivery.message.event_time_s is not None:
                self.tally.latency_s.add(max(0.0, wall_s - delivery.message.event_time_s))
        await self._receiver.ack(*deliveries)
        self.acked += len(deliveries)
        self._finished.add((delivery.message.id for delivery in deliveries), now_s)
