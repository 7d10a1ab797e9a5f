"""Kill -9 of clients and of the broker at random points, and the checks of what must hold afterwards.

Sender and receiver run as processes of their own and print what they know: `sent ID` after the broker's confirm,
`got ID CHECKSUM` before a message is acknowledged, `acked ID` after. So these lines are what a real client knew
when it was killed. `kill_clients` runs both, kills them at random points, starts them again, drains the channel
and returns a `Ledger`, whose `problems()` are the violations. `kill_broker` does the same to the server, while two
clients keep running:

* a confirmed message that was never delivered is lost;
* a message that was delivered twice must have the same id *and* the same content;
* a message that was never sent must not appear.

    python -m flyball.testing.crash send URL CHANNEL --run NAME --first 0 --count 1000 --batch 20
    python -m flyball.testing.crash receive URL CHANNEL [--group NAME] [--window 50]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from flyball.brokers import Broker, Message, Sender, connect
from flyball.futures import wait_at_most

_TIMEOUT_S = 300.0
_DRAIN_S = 60.0


class Killable(Protocol):
    """A server that can be killed with -9 and started again on its data, such as those of `flyball.servers`."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


@dataclass
class Ledger:
    """What clients printed before they were killed."""

    sent: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    acked: list[str] = field(default_factory=list)
    checksums: dict[str, set[int]] = field(default_factory=dict)
    run: str = ""

    def note(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "sent":
            self.sent.append(rest)
        elif word == "acked":
            self.acked.append(rest)
        elif word == "got":
            id, _, checksum = rest.rpartition(" ")
            self.received.append(id)
            self.checksums.setdefault(id, set()).add(int(checksum))

    def problems(self) -> list[str]:
        lost = sorted(set(self.sent) - set(self.received))
        unknown = sorted(id for id in self.checksums if not id.startswith(f"{self.run}-"))
        changed = sorted(
            id for id, sums in self.checksums.items() if id not in unknown and sums != {_checksum(body_of(id))}
        )
        return [
            *(f"{id} was confirmed and never delivered" for id in lost),
            *(f"{id} was delivered but never sent" for id in unknown),
            *(f"{id} was delivered with another content" for id in changed),
        ]

    @property
    def repeats(self) -> int:
        return len(self.received) - len(set(self.received))


def body_of(id: str) -> bytes:
    """The body that belongs to an id, so that deliveries can be checked without storing the bodies."""
    return (id.encode() * 256)[:256]


def _checksum(body: bytes) -> int:
    return zlib.crc32(body)


# --- the two clients --------------------------------------------------------------------------------------------


async def send(url: str, channel: str, run: str, first: int, count: int, batch: int) -> None:
    """Send numbered messages; an unconfirmed one is sent again with the same id until it is confirmed."""
    async with await connect(url) as broker:
        ids = [f"{run}-{number:08d}" for number in range(first, first + count)]
        async for confirmed in send_until_confirmed(await broker.sender(channel), ids, batch):
            _say("".join(f"sent {id}\n" for id in confirmed))


async def send_until_confirmed(sender: Sender, ids: Sequence[str], batch: int) -> AsyncIterator[list[str]]:
    """Send all messages, again with the same id if not confirmed, and yield the ids as they are confirmed."""
    pending = list(ids)
    while pending:
        head = pending[:batch]
        results = await sender.send_batch([Message(body_of(id), id=id) for id in head])
        confirmed = {result.id for result in results if result.ok}
        yield [id for id in head if id in confirmed]
        pending = [id for id in head if id not in confirmed] + pending[batch:]
        await asyncio.sleep(0.002)  # long enough to be killed in the middle


async def receive(
    url: str, channel: str, group: str | None, window: int, idle_s: float | None, keep: int, work_s: float
) -> None:
    """Receive, wait for `work_s` and acknowledge, for ever or until nothing came for `idle_s`.

    With `keep`, stop after one window and never acknowledge its last `keep` messages.
    """
    async with await connect(url) as broker:
        if group is None:
            receiver = await broker.receiver(channel, window=window)
        else:
            receiver = await broker.subscribe(channel, group, window=window, start="earliest")
        _say("ready\n")
        received = acked = 0
        before = await broker.depth(channel, group) if keep and group is not None else 0
        while got := await receiver.receive(window, timeout_s=idle_s):
            _say("".join(f"got {delivery.message.id} {_checksum(delivery.message.body)}\n" for delivery in got))
            received += len(got)
            await asyncio.sleep(work_s)
            done = got if keep == 0 else got[: max(0, window - keep - (received - len(got)))]
            await receiver.ack(*done)
            if keep and group is not None:
                await _wait_stored(broker, channel, group, left=before - (len(done) + acked))
            acked += len(done)
            _say("".join(f"acked {delivery.message.id}\n" for delivery in done))
            if keep and received >= window:
                _say("waiting\n")
                await asyncio.sleep(3600)  # to be killed
        await receiver.close()


def _say(lines: str) -> None:
    sys.stdout.write(lines)
    sys.stdout.flush()


# --- running and killing them -----------------------------------------------------------------------------------


class Client:
    """One client process, whose lines are added to a ledger as they come."""

    def __init__(self, ledger: Ledger, *arguments: str) -> None:
        self._ledger = ledger
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flyball.testing.crash", *arguments], stdout=subprocess.PIPE, text=True
        )
        self._words: set[str] = set()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        for line in self._lines():
            if not line.endswith("\n"):
                break  # cut off by the kill: the line does not count
            self._ledger.note(line)
            self._words.add(line.partition(" ")[0].strip())

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        yield from self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, word: str, timeout_s: float = 120.0) -> bool:
        """Wait until the client has printed a word, or ended; return whether it has."""
        return self.wait_until(lambda: word in self._words, timeout_s)

    def wait_until(self, reached: Callable[[], bool], timeout_s: float = 120.0) -> bool:
        """Wait until `reached()` is true, or the client ended; return whether it is true."""
        deadline = time.monotonic() + timeout_s
        while not reached() and self.running and time.monotonic() < deadline:
            time.sleep(0.002)
        return reached()

    def kill(self) -> None:
        self._process.kill()
        self.join(30.0)

    def join(self, timeout_s: float) -> int:
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code


async def _wait_stored(broker: Broker, channel: str, group: str, left: int) -> None:
    """Wait until the broker has stored the group's acknowledgements: a log may do so a little later."""
    deadline_s = time.monotonic() + _DRAIN_S
    while await broker.depth(channel, group) > left and time.monotonic() < deadline_s:
        await asyncio.sleep(0.02)


def receive_and_kill(url: str, channel: str, group: str | None, count: int, ack: int) -> Ledger:
    """Let a receiver get `count` messages and acknowledge the first `ack` of them, and kill it with -9."""
    ledger = Ledger()
    arguments = ["receive", url, channel, "--window", str(count), "--keep", str(count - ack)]
    client = Client(ledger, *arguments, *(["--group", group] if group else []))
    waiting = client.wait_for("waiting")
    client.kill()
    assert waiting, f"the receiver got {len(ledger.received)} of {count} messages of {channel} and ended"
    return ledger


def kill_clients(
    url: str,
    channel: str,
    *,
    group: str | None = None,
    seed: int,
    messages: int = 2000,
    kills: int = 6,
    drain_idle_s: float = 15.0,
) -> Ledger:
    """Send and receive `messages` while both clients are killed at random points; then drain.

    `drain_idle_s` must be longer than the broker needs to deliver again what a killed client had in flight.
    """
    rng = random.Random(seed)
    ledger = Ledger(run=f"run{seed}")
    receiving = ["receive", url, channel, *(["--group", group] if group else [])]

    def start_sender() -> Client:
        # Everything that is not confirmed is sent again from the first gap: same numbers, same ids.
        confirmed = set(ledger.sent)
        first = next(n for n in range(messages + 1) if f"{ledger.run}-{n:08d}" not in confirmed)
        arguments = ["--run", ledger.run, "--first", str(first), "--count", str(messages - first)]
        return Client(ledger, "send", url, channel, *arguments, "--batch", str(rng.randrange(1, 30)))

    def start_receiver() -> Client:
        return Client(ledger, *receiving, "--window", str(rng.randrange(1, 80)))

    sender, receiver = start_sender(), start_receiver()
    # Kill points are spread over the run by progress, not by time, so that a fast broker meets as many as a slow
    # one; the short random wait makes the exact instruction random.
    for turn, share in enumerate(sorted(rng.uniform(0.02, 0.7) for _ in range(kills))):
        kill_sender = turn % 2 == 0
        victim, progress = (sender, ledger.sent) if kill_sender else (receiver, ledger.acked)
        victim.wait_until(partial(_reached, progress, share * messages))
        time.sleep(rng.uniform(0.0, 0.02))
        victim.kill()
        if kill_sender:
            sender = start_sender()
        else:
            receiver = start_receiver()
    code = sender.join(300.0)
    receiver.kill()
    drain = Client(ledger, *receiving, "--window", "100", "--idle-s", str(drain_idle_s))
    drained = drain.join(300.0)
    assert (code, drained) == (0, 0), f"a client failed by itself: sender {code}, receiver {drained}"
    return ledger


def kill_broker(
    server: Killable, url: str, channel: str, *, group: str | None = None, seed: int, messages: int, kills: int = 2
) -> Ledger:
    """Send and receive `messages` while the broker is killed at random points and started again on its data.

    Both clients keep running: what was not confirmed is sent again with the same id.
    """
    return asyncio.run(
        _kill_broker(server, url, channel, group, random.Random(seed), f"run{seed}", messages, kills)
    )


async def _kill_broker(
    server: Killable,
    url: str,
    channel: str,
    group: str | None,
    rng: random.Random,
    run: str,
    messages: int,
    kills: int,
) -> Ledger:
    ledger = Ledger(run=run)
    ids = [f"{run}-{number:08d}" for number in range(messages)]
    batch = rng.randrange(1, 30)
    async with asyncio.timeout(_TIMEOUT_S), await connect(url) as broker:
        sender = await broker.sender(channel)
        if group is None:
            receiver = await broker.receiver(channel, window=50)
        else:
            receiver = await broker.subscribe(channel, group, window=50, start="earliest")

        async def send() -> None:
            async for confirmed in send_until_confirmed(sender, ids, batch):
                ledger.sent += confirmed

        async def receive() -> None:
            while not sending.done() or set(ledger.sent) - set(ledger.received):
                got = await receiver.receive(50, timeout_s=1.0)
                for delivery in got:
                    ledger.note(f"got {delivery.message.id} {_checksum(delivery.message.body)}")
                await receiver.ack(*got)
                ledger.acked += [delivery.message.id for delivery in got]

        sending = asyncio.create_task(send())
        receiving = asyncio.create_task(receive())
        try:
            for share in sorted(rng.uniform(0.02, 0.8) for _ in range(kills)):
                while not (_reached(ledger.sent, share * messages) or sending.done() or receiving.done()):
                    await asyncio.sleep(0.001)
                await asyncio.sleep(rng.uniform(0.0, 0.02))
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await sending
            # A message that never comes is reported by `problems()`: do not wait for ever.
            with suppress(TimeoutError):
                await wait_at_most(receiving, _DRAIN_S)
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
    return ledger


def _reached(progress: list[str], goal: float) -> bool:
    return len(progress) >= goal


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flyball.testing.crash")
    commands = parser.add_subparsers(dest="command", required=True)
    sending = commands.add_parser("send")
    receiving = commands.add_parser("receive")
    for command in (sending, receiving):
        command.add_argument("url")
        command.add_argument("channel")
    sending.add_argument("--run", required=True)
    sending.add_argument("--first", type=int, default=0)
    sending.add_argument("--count", type=int, required=True)
    sending.add_argument("--batch", type=int, default=20)
    receiving.add_argument("--group")
    receiving.add_argument("--window", type=int, default=50)
    receiving.add_argument("--idle-s", type=float, dest="idle_s")
    receiving.add_argument("--work-s", type=float, default=0.0, dest="work_s")
    receiving.add_argument("--keep", type=int, default=0)
    options = parser.parse_args()
    if options.command == "send":
        asyncio.run(send(options.url, options.channel, options.run, options.first, options.count, options.batch))
    else:
        settings = (options.group, options.window, options.idle_s, options.keep, options.work_s)
        asyncio.run(receive(options.url, options.channel, *settings))


if __name__ == "__main__":
    main()
