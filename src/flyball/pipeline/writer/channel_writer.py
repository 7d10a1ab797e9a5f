"""Sends the messages of one task to one channel: each once into a log that drops repeats, else at least once.

A task first asks the log how far an earlier attempt at its batch came. Usually there was none, and that is all.
Where there was one, the ids that are stored already are read, and only the other messages are sent, each under the
number of its place: another attempt that still writes uses the same numbers, and the log takes each message from
one of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from flyball.brokers import Broker, Message, Sender, SendResult
from flyball.brokers.port import BrokerError, Kind, NoSuchChannel, is_permanent, may_pass
from flyball.pipeline.logs.writer import SinkFailed
from flyball.pipeline.policy.appending import WriteTask
from flyball.pipeline.policy.outages import Outage, after_failure
from flyball.pipeline.writer.stored_ids import find_stored

log = logging.getLogger("flyball.pipeline")
T = TypeVar("T")

_PASSES = 3

Refused = list[tuple[Message, str]]
"""Messages that the broker does not take, however often they are sent, and why."""


async def wait_for_broker(attempt: Callable[[], Awaitable[T]], outage_s: float) -> T:
    """The result of the attempt, which is made again while the broker is away, for at most that time."""
    outage: Outage | None = None
    while True:
        try:
            return await attempt()
        except BrokerError as error:
            if not may_pass(error) or is_permanent(error):
                raise
            now_s = time.monotonic()
            outage, following = after_failure(outage, now_s)
            if now_s + following.pause_s > outage.since_s + outage_s:
                raise
            if following.report:
                log.warning("the sink flyball waits for its broker: %s", error)
            await asyncio.sleep(following.pause_s)


async def kind_of(broker: Broker, channel: str) -> Kind:
    """Whether a channel is a queue or a log; on a broker that has both it must exist."""
    if not broker.capabilities.logs:
        return "queue"
    if not broker.capabilities.queues:
        return "log"
    for info in await broker.channels():
        if info.name == channel:
            return info.kind
    raise NoSuchChannel(
        f"there is no queue or log {channel!r}: declare it first, or set the option declare of the sink flyball "
        "to queue or log"
    )


class ChannelWriter:
    def __init__(
        self, broker: Broker, url: str, channel: str, task: WriteTask, outage_s: float, *, exactly_once: bool
    ) -> None:
        self._broker, self._url, self._channel, self._task = broker, url, channel, task
        self._outage_s, self._exactly_once = outage_s, exactly_once
        self.kind: Kind = "queue"
        self._numbered = False
        self._sender: Sender | None = None
        self._row = 0
        """Place of the next message among those of the task."""
        self._stored: Counter[str] = Counter()
        """What earlier attempts stored and did not come again yet."""
        self._dropped: list[Message] = []
        """What the log took for repeats although it was not known to be stored."""
        self.sent = 0
        self.repeated = 0

    async def open(self, declare: Kind | None, partitions: int) -> None:
        """Find the channel, or declare it, and ask what it has of this batch."""
        if declare == "queue" and not self._broker.capabilities.logs:
            await self._broker.declare(self._channel, declare)  # RabbitMQ misses a queue only when it is sent to
        try:
            await self._open()
        except NoSuchChannel:
            if declare is None:
                raise
            await self._broker.declare(self._channel, declare, partitions=partitions)
            await self._open()

    async def _open(self) -> None:
        self.kind = await kind_of(self._broker, self._channel)
        self._numbered = self._exactly_once and self.kind == "log" and self._broker.capabilities.dedup
        if not self._numbered:
            self._sender = await self._broker.sender(self._channel)
            return
        self._sender = await self._broker.sender(self._channel, producer=self._task.producer)
        stored = self._task.stored_before(await self._sender.last_sequence())
        if stored:
            self._stored = await find_stored(self._broker, self._url, self._channel, self._task, stored)

    async def append(self, messages: Sequence[Message]) -> Refused:
        """Send the messages; repeating a whole task changes nothing in a log that drops repeats."""
        if not self._numbered:
            return await self._send_unnumbered(messages)
        runs: list[tuple[int, list[Message]]] = []  # of consecutive numbers
        for message in messages:
            number, self._row = self._task.first_number + self._row, self._row + 1
            if self._stored[message.id] > 0:
                self._stored[message.id] -= 1
                self.repeated += 1
            elif runs and runs[-1][0] + len(runs[-1][1]) == number:
                runs[-1][1].append(message)
            else:
                runs.append((number, [message]))
        return await self._send_numbered(runs) if runs else []

    async def finish(self) -> None:
        """Send what the log took for repeats and does not have: attempts that saw the rows in another order."""
        for _ in range(_PASSES):
            if not self._dropped:
                return
            stored = await self._find_stored()
            missing = [message for message in self._dropped if not stored[message.id]]
            self.repeated += len(self._dropped) - len(missing)
            self._dropped = []
            if missing:
                last = await wait_for_broker(self._opened.last_sequence, self._outage_s)
                number = max(self._task.first_number + self._row, -1 if last is None else last + 1)
                self._row = number + len(missing) - self._task.first_number
                await self._send_numbered([(number, missing)])
        if self._dropped:
            raise SinkFailed(
                f"the log {self._channel!r} drops messages of producer {self._task.producer!r} that it does not "
                "have: another program may write under this name"
            )

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()

    @property
    def _opened(self) -> Sender:
        assert self._sender is not None, "open() comes first"
        return self._sender

    async def _find_stored(self) -> Counter[str]:
        async def find() -> Counter[str]:
            return await find_stored(self._broker, self._url, self._channel, self._task, self._row)

        return await wait_for_broker(find, self._outage_s)

    async def _send_numbered(self, runs: Sequence[tuple[int, list[Message]]]) -> Refused:
        tries = 0

        async def send() -> list[list[SendResult]]:
            nonlocal tries
            tries += 1
            results = await asyncio.gather(
                *(self._opened.send_batch(messages, sequence=number) for number, messages in runs)
            )
            _raise_transient(result for each in results for result in each)
            return list(results)

        refused: Refused = []
        for (_, messages), results in zip(runs, await wait_for_broker(send, self._outage_s), strict=True):
            refused += _refused(messages, results)
            # After a failed try they are repeats of our own.
            dropped = [
                message
                for message, result in zip(messages, results, strict=True)
                if result.ok and result.duplicate and tries == 1
            ]
            self._dropped += dropped
            self.sent += sum(result.ok for result in results) - len(dropped)
        return refused

    async def _send_unnumbered(self, messages: Sequence[Message]) -> Refused:
        waiting = list(messages)
        refused: Refused = []

        async def send() -> None:
            nonlocal waiting
            results = await self._opened.send_batch(waiting)
            refused.extend(_refused(waiting, results))
            self.sent += sum(result.ok for result in results)
            waiting = [
                message
                for message, result in zip(waiting, results, strict=True)
                if result.error is not None and not is_permanent(result.error)
            ]
            _raise_transient(results)

        await wait_for_broker(send, self._outage_s)
        return refused


def _raise_transient(results: Iterable[SendResult]) -> None:
    for result in results:
        if result.error is not None and not is_permanent(result.error):
            raise result.error


def _refused(messages: Sequence[Message], results: Sequence[SendResult]) -> Refused:
    return [
        (message, str(result.error))
        for message, result in zip(messages, results, strict=True)
        if is_permanent(result.error)
    ]
