"""flyball publish: publish a file, standard input or generated messages, and print rate and latency."""

from __future__ import annotations

import asyncio
import time
from itertools import count as count_up
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyball.cli.output import JsonOption, note, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball.cli.bodies import Bodies
    from flyball.cli.load import Stop, Tally
    from flyball.errors import FlyballError
    from flyball.message import Message
    from flyball.publisher.handle import Handle
    from flyball.publisher.publisher import Publisher

_MAX_GROUP = 100
_MAX_SIZE = 1 << 27
_GIVE_UP_S = 30.0
_CHECK_S = 0.1


def command(
    url: Annotated[str, typer.Argument(help="Broker URL, such as sqlite:///events.db or amqp://localhost/.")],
    channel: Annotated[str, typer.Argument(help="Queue or log to publish to.")],
    file: Annotated[
        str | None, typer.Option(help="Publish the lines of this file; '-' is standard input.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Publish the file as one message.")] = False,
    body: Annotated[str | None, typer.Option(help="Publish this text.")] = None,
    size: Annotated[int, typer.Option(min=0, max=_MAX_SIZE, help="Size of a generated message in bytes.")] = 256,
    count: Annotated[int | None, typer.Option(min=0, help="Number of messages.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second (default: as fast as possible).")] = None,
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
        str | None,
        typer.Option(help="File for accepted messages (default: in memory; with --listen CHANNEL.outbox.db)."),
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest body that --listen accepts.")] = 1 << 20,
    token: Annotated[
        str | None,
        typer.Option(envvar="FLYBALL_LISTEN_TOKEN", help="Bearer token that clients of --listen must send."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Read the token from this file, so that it is not in the process list.")
    ] = None,
    max_outbox_bytes: Annotated[
        int | None, typer.Option(min=1, help="Largest outbox (default: 4 GiB in a file, 64 MiB in memory).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print the rate while running.")] = False,
    json: JsonOption = False,
) -> None:
    """Publish a file, standard input or generated messages, and print rate and latency percentiles.

    Lines of a file arrive in order. Batch size and window follow the broker, as they do in a program that uses
    flyball.Publisher. Latency counts from the time at which a message was due (with --rate) or accepted, to the
    broker's confirm.
    """
    from flyball.cli import bodies
    from flyball.cli.load import Stop, Tally, figures_table
    from flyball.errors import InvalidValue

    if rate is not None and not rate > 0:
        raise InvalidValue(f"--rate must be > 0, got {rate:g}")
    if declare not in (None, "queue", "log"):
        raise InvalidValue(f"--declare must be queue or log, got {declare!r}")
    if listen is not None:
        from flyball.cli.listen import choose_token, serve

        path = outbox or f"{channel}.outbox.db"
        secret = choose_token(token, token_file)
        serve(url, channel, listen, path, declare, max_body_bytes, max_outbox_bytes, seconds, secret, json=json)
        return
    if token_file is not None:
        raise InvalidValue("--token-file needs --listen HOST:PORT")
    template = _Template(bodies.numbered_keys(key, keys), bodies.headers(header or []), content_type)

    async def run() -> tuple[_Run, int]:
        from flyball.brokers import connect
        from flyball.publisher.options import OrderingConfig, OutboxConfig
        from flyball.publisher.publisher import Publisher

        stop = Stop()
        supply = bodies.choose(file=file, whole=whole, body=body, size=size, count=count, seconds=seconds)
        try:
            async with await connect(url) as broker:  # a broker that does not answer is an error here
                if declare is not None:
                    await broker.declare(channel, "log" if declare == "log" else "queue", partitions=partitions)
                publisher = Publisher(
                    url,
                    channel=channel,
                    outbox=OutboxConfig(outbox, max_outbox_bytes),
                    ordering=None if file is None or whole else OrderingConfig(),
                )
                work = _Run(publisher, supply, template, stop, Tally("confirmed", quiet), rate)
                stop.after(seconds)
                await work.run()
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
        "repeated": work.repeated,
        **work.tally.figures(work.seconds),
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
        from flyball.message import Message

        return Message(
            body=body,
            key=self._keys[number % len(self._keys)],
            headers=self._headers,
            event_time_s=time_s,
            content_type=self._content_type,
        )


class _GaveUp(Exception):
    """The broker stores nothing more: leave the publisher without waiting for it."""


class _Run:
    """Publishes bodies when they are due, and counts what became of each message."""

    def __init__(
        self,
        publisher: Publisher,
        supply: Bodies,
        template: _Template,
        stop: Stop,
        tally: Tally,
        rate: float | None,
    ) -> None:
        self._publisher = publisher
        self._supply = supply
        self._template = template
        self._stop = stop
        self._rate = rate
        self._started_s = 0.0
        self._unconfirmed: set[int] = set()
        self._progress = asyncio.Event()
        self.tally = tally
        self.sent = self.failed = self.repeated = 0
        self.seconds = 0.0
        self.first_error: FlyballError | None = None
        self.first_failed: int | None = None

    @property
    def confirmed(self) -> int:
        return self.tally.messages

    async def run(self) -> None:
        from contextlib import suppress

        with suppress(_GaveUp):
            async with self._publisher as publisher:
                self._started_s = time.monotonic()
                live = asyncio.create_task(self.tally.live(lambda: "".join(f"  {p}" for p in publisher.problems)))
                work = asyncio.create_task(self._publish())
                try:
                    await self._watch(work)
                finally:
                    self.seconds = time.monotonic() - self._started_s
                    self.repeated = publisher.stats.repeated
                    for task in (live, work):
                        task.cancel()
                    await asyncio.gather(live, work, return_exceptions=True)

    async def _watch(self, work: asyncio.Task[None]) -> None:
        """Wait for the end. Give up at once where a retry cannot help, and after a time without any confirm."""
        from flyball.brokers.port import Blocked, Unconfirmed, Unreachable

        confirmed, progress_s = 0, time.monotonic()
        while not (await asyncio.wait([work], timeout=_CHECK_S))[0]:
            now_s = time.monotonic()
            if self.confirmed > confirmed or not self._unconfirmed:
                confirmed, progress_s = self.confirmed, now_s
            errors = self._publisher.errors
            fatal = [error for error in errors if not isinstance(error, Unconfirmed | Blocked | Unreachable)]
            if not fatal and now_s - progress_s > _GIVE_UP_S:
                fatal = errors or [Blocked(f"the broker confirmed no message for {_GIVE_UP_S:g} s")]
            if fatal:
                self._fail(fatal[0], *self._unconfirmed)
                raise _GaveUp
        work.result()

    async def _publish(self) -> None:
        results: set[asyncio.Task[None]] = set()
        try:
            while entries := await self._next():
                self._unconfirmed.update(number for number, _, _ in entries)
                entries, handles = await self._accept(entries)
                task = asyncio.create_task(self._collect(entries, handles))
                results.add(task)
                task.add_done_callback(results.discard)
            await asyncio.gather(*results)
        finally:
            for task in results:
                task.cancel()

    async def _accept(
        self, entries: list[tuple[int, float, Message]]
    ) -> tuple[list[tuple[int, float, Message]], list[Handle]]:
        """Return what was accepted; a message that the broker will never store fails alone."""
        from flyball.brokers.port import TooLarge
        from flyball.errors import InvalidValue

        try:
            return entries, await self._publisher.publish_many([message for _, _, message in entries])
        except (TooLarge, InvalidValue) as error:
            if len(entries) > 1:
                parts = [await self._accept([entry]) for entry in entries]
                return [entry for part, _ in parts for entry in part], [each for _, part in parts for each in part]
            self._fail(error, entries[0][0])
            self._unconfirmed.discard(entries[0][0])
            return [], []

    async def _next(self) -> list[tuple[int, float, Message]]:
        """Return (number, due time, message) of what is due now, at least one; none: the end.

        With a rate, message n is due at start + n / rate, whatever became of those before: a broker that was
        slow for a second shows in the latency of everything that should have been sent in that second.
        """
        most = await self._wait_for_room()
        if self._rate is not None:
            wait_s = self._started_s + self.sent / self._rate - time.monotonic()
            if wait_s > 0:
                await self._stop.sleep(wait_s)
            due = int((time.monotonic() - self._started_s) * self._rate) + 1 - self.sent
            most = max(1, min(most, due))
        if self._stop:
            return []
        bodies = await self._supply.take(most, self._stop)
        now_s, wall_s = time.monotonic(), time.time()
        entries = []
        for number, body in zip(count_up(self.sent), bodies, strict=False):
            due_s = now_s if self._rate is None else min(now_s, self._started_s + number / self._rate)
            entries.append((number, due_s, self._template.message(number, body, wall_s - (now_s - due_s))))
        self.sent += len(entries)
        return entries

    async def _wait_for_room(self) -> int:
        """Return how many may be accepted now: enough for a full window, and few that only wait in the outbox."""
        while True:
            window = self._publisher.stats.targets[0].window
            room = int(window) + _MAX_GROUP - len(self._unconfirmed)
            if room > 0:
                return min(room, _MAX_GROUP)
            self._progress.clear()
            await self._progress.wait()

    async def _collect(self, entries: Sequence[tuple[int, float, Message]], handles: Sequence[Handle]) -> None:
        from flyball.publisher.handle import Rejected

        for (number, due_s, message), handle in zip(entries, handles, strict=True):
            try:
                await handle.wait_confirmed()
            except Rejected as error:  # too large, for one: the others go on
                self._fail(error, number)
            else:
                self.tally.add(1, len(message.body))
                self.tally.latency_s.add(time.monotonic() - due_s)
            self._unconfirmed.discard(number)
            self._progress.set()

    def _fail(self, error: FlyballError, *numbers: int) -> None:
        self.failed += len(numbers)
        first = min(numbers, default=self.sent) + 1
        if self.first_failed is None or first < self.first_failed:
            self.first_failed, self.first_error = first, error
