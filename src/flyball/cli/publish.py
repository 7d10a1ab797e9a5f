"""flyball publish: publish a file, standard input or generated messages, and print rate and latency."""

from __future__ import annotations

import asyncio
import time
from itertools import count as count_up
from typing import TYPE_CHECKING, Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball.brokers import Message, Sender
    from flyball.brokers.port import BrokerError
    from flyball.cli.bodies import Bodies
    from flyball.cli.load import Stop, Tally

# After this many repeats of a message that a broker did not confirm, something is wrong with the broker: about
# half a minute with the waits between them.
_REPEATS = 10


def command(
    url: Annotated[str, typer.Argument(help="Broker URL, such as sqlite:///events.db or amqp://localhost/.")],
    channel: Annotated[str, typer.Argument(help="Queue or log to publish to.")],
    file: Annotated[
        str | None, typer.Option(help="Publish the lines of this file; '-' is standard input.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Publish the file as one message.")] = False,
    body: Annotated[str | None, typer.Option(help="Publish this text.")] = None,
    size: Annotated[int, typer.Option(min=0, help="Size of a generated message in bytes.")] = 256,
    count: Annotated[int | None, typer.Option(min=0, help="Number of messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second (default: as fast as possible).")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Largest number of messages in a batch.")] = 100,
    parallel: Annotated[
        int, typer.Option(min=1, help="Batches in flight; with more than 1 the order may change.")
    ] = 1,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    keys: Annotated[int | None, typer.Option(min=1, help="Distribute the messages over this many keys.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="Header NAME=VALUE; may be repeated.")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Content type of the bodies, such as text/plain.")
    ] = None,
    declare: Annotated[str | None, typer.Option(help="Create the channel first: queue or log.")] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a log created by --declare.")] = 1,
    listen: Annotated[
        str | None, typer.Option(help="Accept messages over HTTP at HOST:PORT (202 when stored, 503 when full).")
    ] = None,
    outbox: Annotated[
        str | None, typer.Option(help="File for messages accepted by --listen (default: CHANNEL.outbox.db).")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest body that --listen accepts.")] = 1 << 20,
    max_outbox_bytes: Annotated[int, typer.Option(min=1, help="Largest outbox of --listen; beyond it 503.")] = 4
    << 30,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the rate while running.")] = False,
    json: JsonOption = False,
) -> None:
    """Publish a file, standard input or generated messages, and print rate and latency percentiles.

    Latency counts from the time at which a message was due (with --rate) or sent, to the broker's confirm.
    """
    from flyball.cli import bodies
    from flyball.cli.load import Stop, Tally, figures_table
    from flyball.errors import InvalidValue

    if rate is not None and not rate > 0:
        raise InvalidValue(f"--rate must be > 0, got {rate:g}")
    if declare not in (None, "queue", "log"):
        raise InvalidValue(f"--declare must be queue or log, got {declare!r}")
    if listen is not None:
        from flyball.cli.listen import serve

        path = outbox or f"{channel}.outbox.db"
        serve(url, channel, listen, path, declare, max_body_bytes, max_outbox_bytes, seconds, json=json)
        return
    template = _Template(bodies.numbered_keys(key, keys), bodies.headers(header or []), content_type)

    async def run() -> tuple[_Publishing, int]:
        from flyball.brokers import connect

        stop = Stop()
        supply = bodies.choose(file=file, whole=whole, body=body, size=size, count=count, seconds=seconds)
        try:
            async with await connect(url) as broker:
                if declare is not None:
                    await broker.declare(channel, "log" if declare == "log" else "queue", partitions=partitions)
                sender = await broker.sender(channel)
                work = _Publishing(sender, supply, template, stop, Tally("confirmed", quiet), rate, batch)
                stop.after(seconds)
                try:
                    await work.run(parallel)
                finally:
                    await sender.close()
        finally:
            supply.close()
        return work, stop.exit_code

    work, exit_code = asyncio.run(run())
    if work.first_error is not None and work.confirmed == 0 and not json:
        raise work.first_error
    document = {
        "channel": channel,
        "sent": work.sent,
        "confirmed": work.confirmed,
        "failed": work.failed,
        "duplicates": work.duplicates,
        "repeated": work.repeated,
        **work.tally.figures(work.took_s),
    }
    print_json(document) if json else typer.echo(figures_table(document))
    if work.first_error is not None:
        note(
            f"flyball: {work.failed} of {work.sent} messages were not stored, the first is number "
            f"{work.first_failed}: {work.first_error}"
        )
        raise typer.Exit(2)
    raise typer.Exit(exit_code)


class _Template:
    """Makes messages of bodies."""

    def __init__(self, keys: Sequence[bytes | None], headers: dict[str, str], content_type: str | None) -> None:
        self._keys = keys
        self._headers = headers
        self._content_type = content_type

    def message(self, number: int, body: bytes, time_s: float) -> Message:
        from flyball.brokers import Message

        return Message(
            body=body,
            key=self._keys[number % len(self._keys)],
            headers=self._headers,
            event_time_s=time_s,
            content_type=self._content_type,
        )


class _Publishing:
    """One run: takes bodies when they are due, sends them in batches, repeats what was not confirmed."""

    def __init__(
        self,
        sender: Sender,
        supply: Bodies,
        template: _Template,
        stop: Stop,
        tally: Tally,
        rate: float | None,
        batch: int,
    ) -> None:
        self._sender = sender
        self._supply = supply
        self._template = template
        self._stop = stop
        self._rate = rate
        self._batch = batch
        self._turn = asyncio.Lock()
        self._started_s = 0.0
        self.tally = tally
        self.sent = self.failed = self.duplicates = self.repeated = 0
        self.took_s = 0.0
        self.first_error: BrokerError | None = None
        self.first_failed: int | None = None
        self._hopeless = False

    @property
    def confirmed(self) -> int:
        return self.tally.messages

    async def run(self, parallel: int) -> None:
        self._started_s = time.monotonic()
        live = asyncio.create_task(self.tally.live(lambda: "  blocked" if self._sender.blocked else ""))
        try:
            await asyncio.gather(*(self._work() for _ in range(parallel)))
        finally:
            self.took_s = time.monotonic() - self._started_s
            live.cancel()
            await asyncio.gather(live, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            async with self._turn:
                entries = await self._next()
            if not entries:
                return
            await self._send(entries)
            # A broker that is always ready (memory) never lets go of the event loop: timers and signals need it.
            await asyncio.sleep(0)

    async def _next(self) -> list[tuple[int, float, Message]]:
        """(number, due, message) of what is due now, at least one; empty: finished.

        With a rate, message n is due at start + n / rate, whatever became of those before: a broker that was
        slow for a second shows in the latency of everything that should have been sent in that second.
        """
        most = self._batch
        if self._rate is not None:
            wait_s = self._started_s + self.sent / self._rate - time.monotonic()
            if wait_s > 0:
                await self._stop.sleep(wait_s)
            due = int((time.monotonic() - self._started_s) * self._rate) + 1 - self.sent
            most = max(1, min(self._batch, due))
        if self._stop or self._hopeless:
            return []
        bodies = await self._supply.take(most, self._stop)
        now_s, wall_s = time.monotonic(), time.time()
        entries = []
        for number, body in zip(count_up(self.sent), bodies, strict=False):
            due_s = now_s if self._rate is None else min(now_s, self._started_s + number / self._rate)
            entries.append((number, due_s, self._template.message(number, body, wall_s - (now_s - due_s))))
        self.sent += len(entries)
        return entries

    async def _send(self, entries: list[tuple[int, float, Message]]) -> None:
        from flyball.backoff import delays_s
        from flyball.brokers.port import Blocked, BrokerError, TooLarge, Unconfirmed

        for delay_s in (0.0, *delays_s(_REPEATS)):
            if delay_s:
                await self._stop.sleep(delay_s)
                self.repeated += len(entries)
            try:
                results = await self._sender.send_batch([message for _, _, message in entries])
            except BrokerError as error:
                self._hopeless = True
                self._give_up(entries, error)
                return
            now_s = time.monotonic()
            again: list[tuple[int, float, Message]] = []
            last_error: BrokerError | None = None
            for entry, result in zip(entries, results, strict=True):
                number, due_s, message = entry
                if result.error is None:
                    self.tally.add(1, len(message.body))
                    self.tally.latency_s.add(now_s - due_s)
                    self.duplicates += result.duplicate
                elif isinstance(result.error, Unconfirmed | Blocked):
                    again.append(entry)
                    last_error = result.error
                else:
                    # Too large is this message's own fault; anything else will befall the next one too.
                    self._hopeless |= not isinstance(result.error, TooLarge)
                    self._give_up([(number, due_s, message)], result.error)
            if last_error is None:
                return
            entries = again
            if self._stop or self._hopeless:
                break
        self._hopeless = True
        if last_error is not None:
            self._give_up(entries, last_error)

    def _give_up(self, entries: Sequence[tuple[int, float, Message]], error: BrokerError) -> None:
        self.failed += len(entries)
        first = min(number for number, _, _ in entries) + 1
        if self.first_failed is None or first < self.first_failed:
            self.first_failed, self.first_error = first, error
