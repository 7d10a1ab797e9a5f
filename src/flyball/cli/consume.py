"""flyball consume: consume messages from a queue or a subscription, and print rate and latency."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, TypeVar

import typer

from flyball.cli.output import JsonOption, note, print_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from flyball.brokers import Delivery, Receiver
    from flyball.cli.load import Stop, Tally

_Result = TypeVar("_Result")

# The longest wait for messages. A wait is never cancelled: what the broker delivered in that moment would be
# neither acknowledged nor returned.
_WAIT_S = 0.2
_MAX_BATCH = 500
_GIVE_UP_S = 30.0
"""A broker that fails for so long is given up."""


def command(
    url: Annotated[
        str | None, typer.Argument(help="Broker URL, such as sqlite:///events.db or amqp://localhost/.")
    ] = None,
    channel: Annotated[
        str | None, typer.Argument(help="Queue; with --group, a channel or a pattern such as 'city.*.load'.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Run the consumer of this config file.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Consume as a member of this group (required for logs).")
    ] = None,
    start: Annotated[str, typer.Option("--from", help="Start of a new group: earliest or latest.")] = "earliest",
    count: Annotated[int | None, typer.Option(min=0, help="Stop after this many messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None,
    idle: Annotated[
        float | None, typer.Option(min=0, help="Stop when no message came for this many seconds.")
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Largest number of unacknowledged messages.")] = 100,
    out: Annotated[
        str | None,
        typer.Option(
            help="Append the bodies to this file, one per line; '-' is standard output. A file that exists is "
            "never emptied: its messages are no longer at the broker."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the rate while running.")] = False,
    json: JsonOption = False,
) -> None:
    """Consume messages and acknowledge each after it was written; unacknowledged messages return to the broker.

    Latency counts from the event time, which `flyball publish` sets when it sends a message. With --config,
    messages go to the handler in the file, and the consumer is controlled to the goal in the file.
    """
    if config is not None:
        from flyball.cli.consume_config import run_config

        others = {"URL": url, "CHANNEL": channel, "--group": group, "--count": count, "--idle": idle, "--out": out}
        run_config(config, seconds, quiet, json, [name for name, value in others.items() if value is not None])
        return
    from flyball.brokers import connect
    from flyball.brokers.port import BrokerError, NoSuchChannel
    from flyball.cli.load import Stop, Tally, figures_table
    from flyball.errors import InvalidValue

    if url is None or channel is None:
        raise InvalidValue(
            "a broker and a queue are required: flyball consume URL CHANNEL, or --config CONFIG.toml"
        )
    if json and out == "-":
        raise InvalidValue("--json and --out - both write to standard output; give --out a file")
    where: Literal["earliest", "latest"]
    if start == "earliest":
        where = "earliest"
    elif start == "latest":
        where = "latest"
    else:
        raise InvalidValue(f"--from must be earliest or latest, got {start!r}")

    async def run(target: BinaryIO | None) -> tuple[_ConsumeRun, int, BrokerError | None]:
        stop = Stop()
        async with await connect(url, create=False) as broker:
            receiver = (
                await broker.receiver(channel, window=window)
                if group is None
                else await broker.subscribe(channel, group, window=window, start=where)
            )
            work = _ConsumeRun(receiver, target, stop, Tally("received", quiet), count, idle)
            stop.after(seconds)
            failure: BrokerError | None = None
            try:
                await work.run()
            except NoSuchChannel:
                failure = NoSuchChannel(f"{channel} was deleted while it was consumed")
            except BrokerError as error:
                failure = error
            finally:
                await receiver.close()
        return work, 0 if count is None or work.tally.messages >= count else stop.exit_code, failure

    with ExitStack() as files:
        work, exit_code, failure = asyncio.run(run(_target(out, files)))
    document = {
        "channel": channel,
        "group": group,
        "received": work.tally.messages,
        "acked": work.acked,
        "redelivered": work.redelivered,
        "duplicates": work.duplicates,
        "unreadable": work.unreadable,
        **work.tally.figures(work.seconds),
    }
    if json:
        print_json(document)
    else:
        typer.echo(figures_table(document), err=out == "-")
    if failure is not None:  # after the figures: what was acknowledged before it is no longer at the broker
        raise failure
    raise typer.Exit(exit_code)


def _target(out: str | None, files: ExitStack) -> BinaryIO | None:
    from flyball.errors import InvalidValue

    if out is None:
        return None
    if out == "-":
        if sys.stdout is None:
            raise InvalidValue("--out - needs standard output, which is closed")
        return sys.stdout.buffer
    try:
        if _ends_within_a_line(Path(out)):
            with Path(out).open("ab") as file:
                file.write(b"\n")
        return files.enter_context(Path(out).open("ab"))
    except OSError as error:
        raise InvalidValue(f"cannot write {out!r}: {error.strerror}") from None


def _ends_within_a_line(path: Path) -> bool:
    """Whether an earlier run was killed while it wrote a line; that message was not acknowledged."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


class _ConsumeRun:
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
        self.acked = self.redelivered = self.duplicates = self.unreadable = 0

    @property
    def seconds(self) -> float:
        """Time from the first message to the last: the wait for a publisher to start does not count."""
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
            most = _MAX_BATCH if self._count is None else min(_MAX_BATCH, self._count - self.tally.messages)
            if min(left_s) <= 0 or most <= 0:
                return
            deliveries = await self._try(partial(self._receiver.receive, most, timeout_s=min(left_s)))
            if deliveries:
                last_s = time.monotonic()
                await self._handle(deliveries)
                await asyncio.sleep(0)  # lets signals in even if the broker always has messages ready

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        now_s, wall_s = time.monotonic(), time.time()
        if self._target is not None:
            self._target.write(b"".join(delivery.message.body + b"\n" for delivery in deliveries))
            self._target.flush()
        self.tally.add(len(deliveries), sum(len(delivery.message.body) for delivery in deliveries))
        for delivery in deliveries:
            self.redelivered += delivery.redelivered
            self.duplicates += self._finished.contains((delivery.channel, delivery.message.id), now_s)
            if delivery.unreadable is not None:
                self._report_unreadable(delivery)
            if delivery.message.event_time_s is not None:
                self.tally.latency_s.add(max(0.0, wall_s - delivery.message.event_time_s))
        self._finished.add(((delivery.channel, delivery.message.id) for delivery in deliveries), now_s)
        await self._try(partial(self._acknowledge, deliveries))

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await self._receiver.ack(*deliveries)
        self.acked += len(deliveries)

    async def _try(self, call: Callable[[], Awaitable[_Result]]) -> _Result | None:
        """Return what a call returns, after trying again while the broker is away; None: a signal came first."""
        from flyball.backoff import ENDLESS, delays_s
        from flyball.brokers.port import BrokerError, may_pass

        give_up_s: float | None = None
        for delay_s in delays_s(ENDLESS, longest_s=1.0):
            try:
                return await call()
            except BrokerError as error:
                now_s = time.monotonic()
                if not may_pass(error) or (give_up_s is not None and now_s > give_up_s):
                    raise
                if give_up_s is None:
                    give_up_s = now_s + _GIVE_UP_S
                    note(f"flyball: {error}; trying again for {_GIVE_UP_S:g} s")
            await self._stop.sleep(delay_s)
            if self._stop:
                break
        return None

    def _report_unreadable(self, delivery: Delivery) -> None:
        """Print the first one; all of them are counted."""
        if not self.unreadable:
            what = f"message {delivery.message.id} of {delivery.channel} is unreadable"
            typer.echo(f"{what} ({delivery.unreadable}); its body is used as it is", err=True)
        self.unreadable += 1
