"""One target of a publisher: what waits for it, what is on the way to it, and the policy that decides.

Carries out what `policy` decides, with one task for each batch.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flyball.backoff import ENDLESS, delays_s
from flyball.brokers import Message, Sender, SendResult
from flyball.brokers.connections import Connection, Connections
from flyball.brokers.port import BrokerError, Kind, Unconfirmed, UnfitMessage, Unreachable, is_permanent
from flyball.brokers.url import BrokerUrl
from flyball.control.record import LoopRecord
from flyball.errors import FlyballError, InvalidValue
from flyball.publisher.handle import Handle, ReadyQueue
from flyball.publisher.policy import (
    Accepted,
    Batch,
    Blocked,
    Confirmed,
    Event,
    Failed,
    Policy,
    State,
    Timer,
    Unblocked,
    Urgent,
    Withdrawn,
    decide,
    start,
)
from flyball.steady_clock import SteadyClock

log = logging.getLogger(__name__)

_WATCH_S = 0.05
IDLE_S = 30.0
"""A target that gets no message for so long is given up: its sender is closed and opened again when needed."""
_MAX_RECORDS = 2000
_MAX_CONFIRMED_ELSEWHERE = 10_000
"""Messages that enough other targets have confirmed already wait up to this number for a target that is behind."""
_MAX_CONFIRMED_ELSEWHERE_BYTES = 32 << 20
_LONGEST_RETRY_S = 2.0
"""Between two attempts: a broker that is back after a long outage may need several until it takes a message."""
_ENCODING_ERRORS = (TypeError, ValueError, ArithmeticError, struct.error)
_MAX_FAULTS = 6
"""So often a message is sent with which sending raises what no broker error describes."""
_MAX_FAULTY = 10_000

# Times from 1970 that never go back: publishers on one host agree on them (the controller `auto` asks for that).
now_s = SteadyClock().now


@dataclass(frozen=True, slots=True)
class Target:
    """A channel at a broker.

    With a `producer` messages carry their outbox number to a log, which drops what it holds already; `newest` is
    the last number that was given before this publisher began.
    """

    url: str
    channel: str
    declare: Kind | None = None
    producer: str | None = None
    newest: int = 0

    @property
    def name(self) -> str:
        """Channel and broker, for people: without a password."""
        return f"{self.channel} at {BrokerUrl.parse(self.url)}"

    async def open(self, connections: Connections, *, again: bool = False) -> tuple[Connection, Sender]:
        """Open a sender; `again`: this publisher has sent to the target before."""
        connection = await connections.acquire(self.url)
        broker = connection.broker
        sender: Sender | None = None
        try:
            if self.declare is not None:
                await broker.declare(self.channel, self.declare)
            sender = await broker.sender(self.channel, producer=self.producer)
            last = None if self.producer is None or again else await sender.last_sequence()
            if last is not None and last >= self.newest:
                raise InvalidValue(
                    f"{self.channel!r} holds message {last} of producer {self.producer!r} and this outbox begins "
                    f"with {self.newest}: the log would drop these as repeats; name another producer"
                )
        except BaseException:
            await connections.close(connection, sender)
            raise
        return connection, sender


@dataclass(slots=True)
class SendCounts:
    """Messages of one target, counted from the start of the publisher."""

    confirmed: int = 0
    repeated: int = 0
    rejected: int = 0
    skipped: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class TargetStats:
    """One target of one channel: what is under way to it, its settings, and the controller's last step.

    `rejected` messages are those that this target will never store.

    `terms` are the parts of that step (estimates such as the rate and the round trip), `reason` says why.
    """

    channel: str
    target: int
    pending: int
    in_flight: int
    confirmed: int
    rejected: int
    batches: int
    batch: float
    poll_s: float
    window: float
    terms: Mapping[str, float]
    reason: str

    def as_row(self) -> dict[str, Any]:
        """All of it as one flat table row."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**{name: value for name, value in row.items() if name != "terms"}, **self.terms}


@dataclass(frozen=True, slots=True)
class Targets:
    """Where a publisher sends to, and how. A URL alone stands for the channel that is published to."""

    addresses: Sequence[str | tuple[str, str]]
    policy: Policy
    batch: int
    declare: Kind | None
    producer: str | None

    @property
    def count(self) -> int:
        return len(self.addresses)

    @property
    def urls(self) -> list[str]:
        return [address if isinstance(address, str) else address[0] for address in self.addresses]

    def senders(
        self,
        channel: str,
        newest: int,
        connections: Connections,
        *,
        on_stored: Callable[[list[Handle]], None],
        on_refused: Callable[[Handle, str, BrokerError], None],
    ) -> list[TargetSender]:
        """Make a sender for each target; none is connected yet."""
        pairs = [(address, channel) if isinstance(address, str) else address for address in self.addresses]
        return [
            TargetSender(
                Target(url, name, self.declare, self.producer, newest),
                replace(self.policy, name=channel),
                connections,
                batch=self.batch,
                on_stored=on_stored,
                on_refused=on_refused,
            )
            for url, name in pairs
        ]


class TargetSender:
    """Sends messages to one target until they are confirmed.

    Calls `on_stored` with messages that the target has confirmed, and `on_refused` with each message that it will
    never store, the target's name, and the reason.
    """

    def __init__(
        self,
        target: Target,
        policy: Policy,
        connections: Connections,
        *,
        batch: int,
        on_stored: Callable[[list[Handle]], None],
        on_refused: Callable[[Handle, str, BrokerError], None],
    ) -> None:
        self.target = target
        self.counts = SendCounts()
        self.records: deque[LoopRecord] = deque(maxlen=_MAX_RECORDS)
        self.problem: FlyballError | None = None
        """Why the target stored nothing the last time; None once it stores messages again."""
        self._policy = policy
        self._state = start(policy, now_s(), batch=batch)
        self._on_stored, self._on_refused = on_stored, on_refused
        self._queue = ReadyQueue(ordered=policy.ordered)
        self._connections = connections
        self._connection: Connection | None = None
        self._sender: Sender | None = None
        self._opening = asyncio.Lock()
        self._was_open = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._skip_length, self._skip_bytes = _MAX_CONFIRMED_ELSEWHERE, _MAX_CONFIRMED_ELSEWHERE_BYTES
        self._new = 0
        self._events: list[Event] = []
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._delays: Iterator[float] = _retry_delays_s()
        self.max_body_bytes: int | None = None
        """The largest body that the broker takes; None: not known, or not limited."""
        self._faults: dict[str, tuple[int, int]] = {}
        """Messages with which sending raised: how often, and how many the target had stored by then."""
        self._closed = False

    def stats(self, channel: str, number: int) -> TargetStats:
        """Return counts and settings; this is target `number` of `channel`."""
        command, last = self._state.command, self.records[-1] if self.records else None
        return TargetStats(
            channel=channel,
            target=number,
            pending=self._state.pending,
            in_flight=self._state.in_flight,
            confirmed=self.counts.confirmed,
            rejected=self.counts.rejected,
            batches=self.counts.batches,
            batch=command.most,
            poll_s=command.poll_s,
            window=command.window,
            terms={} if last is None else dict(last.parts),
            reason="" if last is None else last.reason,
        )

    # --- called by the relay ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. A broker that is not there is waited for in the background; a wrong channel is an error."""
        try:
            await self._open_sender()
        except Unreachable as error:
            self.problem = error
            self._decide(Blocked(now_s()))
        self._spawn(self._watch())

    def open_later(self) -> None:
        """Connect in the background, for as long as it takes."""
        self._decide(Blocked(now_s()))
        self._spawn(self._watch())

    def add(self, handles: Sequence[Handle]) -> None:
        self._queue.add(handles)
        self._new += len(handles)
        if len(self._queue) > self._skip_length or self._queue.size_bytes > self._skip_bytes:
            self._skip_confirmed()
            # Not again before it has doubled: looking through it costs as much as it is long.
            self._skip_length = max(_MAX_CONFIRMED_ELSEWHERE, 2 * len(self._queue))
            self._skip_bytes = max(_MAX_CONFIRMED_ELSEWHERE_BYTES, 2 * self._queue.size_bytes)
        self._wake()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connection, self._connection, self._sender = self._connection, None, None
        if connection is not None:
            try:
                await self._connections.close(connection)  # and with it the sender
            except Exception:  # others have to be closed, too
                log.exception("%s: closing failed in a way that no broker error describes", self.target.channel)

    @property
    def state(self) -> State:
        return self._state

    @property
    def outstanding(self) -> int:
        """Messages that this target has neither stored nor refused."""
        return len(self._queue) + self._state.in_flight

    @property
    def is_healthy(self) -> bool:
        """Whether the target stores messages, or may do so as soon as it is connected."""
        return self.problem is None and not (self._sender is not None and self._state.blocked)

    def count_missing(self) -> int:
        """Messages that this target does not have although enough others do, once it is closed."""
        return self.counts.skipped + self._queue.count_confirmed()

    # --- deciding -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Decide once about everything that happens in this iteration of the event loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._decide_now)

    def _decide_now(self) -> None:
        self._scheduled = False
        new, self._new = self._new, 0
        events, self._events = self._events, []
        if new:
            events.append(Accepted(now_s(), new))
        if events:
            self._decide(*events)

    def _decide(self, *events: Event) -> None:
        if self._closed:
            return
        if self._queue.urgent != self._state.urgent:
            events = (*events, Urgent(events[-1].now_s, self._queue.urgent))
        self._state, decisions = decide(self._policy, self._state, *events)
        self.records.extend(decisions.records)
        for batch in decisions.send:
            self.counts.batches += 1
            self._spawn(self._send(batch, self._queue.take(batch.count)))
        wake_s = decisions.wake_s
        if wake_s is not None:
            delay_s = max(0.0, wake_s - events[-1].now_s)
            loop = asyncio.get_running_loop()
            when = loop.time() + delay_s
            if self._timer is not None:
                if not self._timer.cancelled() and self._timer.when() <= when:
                    return  # comes early enough; a timer too early does no harm
                self._timer.cancel()
            self._timer = loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._decide(Timer(now_s()))

    def _skip_confirmed(self) -> None:
        skipped = self._queue.drop_confirmed()
        if skipped:
            self.counts.skipped += skipped
            events, self._events = self._events, []
            new, self._new = self._new, 0
            # One decision: between two, the policy would send messages that are not in the queue any more.
            self._decide(*events, Accepted(now_s(), new), Withdrawn(now_s(), skipped))

    # --- sending ------------------------------------------------------------------------------------------------

    async def _send(self, batch: Batch, handles: list[Handle]) -> None:
        try:
            if self.target.producer is None:
                results = await self._send_batch([handle.message for handle in handles])
            else:
                results = await self._send_numbered(handles)
        except asyncio.CancelledError:  # closed: whether the target has them is not known
            self._queue.put_back(handles)
            raise
        self._account(batch, handles, results)

    async def _send_numbered(self, handles: list[Handle]) -> list[SendResult]:
        """Run by run of consecutive numbers. After a failure none may follow: the log would take the missing ones
        for repeats when they come."""
        results: list[SendResult] = []
        for run in _consecutive(handles):
            results += await self._send_batch([handle.message for handle in run], run[0].seq - 1)
            failed = [result.error for result in results if result.error and not is_permanent(result.error)]
            if failed:
                results += [SendResult(handle.id, failed[0]) for handle in handles[len(results) :]]
                break
        return results

    async def _send_batch(self, messages: list[Message], sequence: int | None = None) -> list[SendResult]:
        try:
            sender = self._sender or await self._open_again()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no fault of the messages
            lost: BrokerError = Unreachable(f"connecting to {self.target.channel!r} failed: {error}")
            if isinstance(error, BrokerError) and not is_permanent(error):
                lost = error
            return [SendResult(message.id, lost) for message in messages]
        try:
            results = await sender.send_batch(messages, sequence=sequence)
            if len(results) != len(messages):
                raise RuntimeError(f"{len(results)} results for {len(messages)} messages")
        except BrokerError as error:
            if is_permanent(error) and len(messages) > 1:
                return await self._send_halves(messages, sequence)
            results = [SendResult(message.id, error) for message in messages]
        except Exception as error:  # a fault of an adapter or a client library must not hold up a batch for ever
            if len(messages) > 1:
                return await self._send_halves(messages, sequence)
            if messages[0].id not in self._faults:
                log.exception("%s: sending failed in a way that no broker error describes", self.target.channel)
            results = [SendResult(messages[0].id, self._judge(messages[0], error))]
        return results

    async def _send_halves(self, messages: list[Message], sequence: int | None) -> list[SendResult]:
        """Find the message with which sending raises: it must not hold up the others."""
        half = len(messages) // 2
        results = await self._send_batch(messages[:half], sequence)
        failed = next((each.error for each in results if each.error and not is_permanent(each.error)), None)
        if failed is not None and self._policy.ordered:  # none may overtake, see also _send_numbered
            return results + [SendResult(message.id, failed) for message in messages[half:]]
        return results + await self._send_batch(messages[half:], None if sequence is None else sequence + half)

    def _judge(self, message: Message, error: Exception) -> BrokerError:
        """Whether a message with which sending raised, alone, is to be sent again.

        Not after a few times, if the error is one of encoding, or if the target has stored others in between: then
        it is the message, and not the connection.
        """
        text = f"sending to {self.target.channel!r} raised {type(error).__name__}: {error}"
        times, confirmed = self._faults.pop(message.id, (0, self.counts.confirmed))
        if isinstance(error, _ENCODING_ERRORS) or self.counts.confirmed > confirmed:
            times += 1
        if times >= _MAX_FAULTS:
            self._delays = _retry_delays_s()  # the back-off was because of this message
            return UnfitMessage(text)
        self._faults[message.id] = (times, self.counts.confirmed)
        while len(self._faults) > _MAX_FAULTY:
            del self._faults[next(iter(self._faults))]
        return Unconfirmed(text)

    def _account(self, batch: Batch, handles: list[Handle], results: list[SendResult]) -> None:
        again: list[Handle] = []
        stored = handles
        if any(result.error is not None for result in results):
            stored, again = self._sort_results(handles, results)
        self.counts.confirmed += len(stored)
        if stored:
            self._on_stored(stored)
        if again:
            self.counts.repeated += len(again)
            self._queue.put_back(again)
            time_s = now_s()
            self._events.append(Failed(time_s, batch, len(again), time_s + next(self._delays)))
        else:
            if self.problem is not None:
                self.problem, self._delays = None, _retry_delays_s()
            self._events.append(Confirmed(now_s(), batch))
        self._wake()

    def _sort_results(
        self, handles: Iterable[Handle], results: Iterable[SendResult]
    ) -> tuple[list[Handle], list[Handle]]:
        """Return what is stored and what is to be sent again; reject what no broker will ever store."""
        stored: list[Handle] = []
        again: list[Handle] = []
        for handle, result in zip(handles, results, strict=True):
            if result.error is None:
                # In order, everything from the first gap on is sent again.
                (again if again and self._policy.ordered else stored).append(handle)
            elif is_permanent(result.error):
                self.counts.rejected += 1
                self._on_refused(handle, self.target.name, result.error)
            else:
                self.problem = result.error
                again.append(handle)
        return stored, again

    async def _watch(self) -> None:
        """Notice what brokers do not announce: that they block senders, and that they are back; and that nothing
        is sent any more: then give the connection up, until something is."""
        while self._sender is None:
            for wait_s in _retry_delays_s():
                await asyncio.sleep(wait_s)
                try:
                    await self._open_sender()
                    break
                except FlyballError as error:
                    self.problem = error
                except Exception as error:  # a fault of a client library must not end the waiting for the broker
                    log.exception(
                        "%s: connecting failed in a way that no broker error describes", self.target.channel
                    )
                    self.problem = Unreachable(f"connecting raised {type(error).__name__}: {error}")
        batches, unused_s = -1, 0.0
        while unused_s < IDLE_S:
            blocked = self._sender.blocked
            if blocked != self._state.blocked:
                self._decide(Blocked(now_s()) if blocked else Unblocked(now_s()))
            await asyncio.sleep(_WATCH_S)
            unused = self.counts.batches == batches and not (self._queue or self._state.in_flight or blocked)
            batches, unused_s = self.counts.batches, unused_s + _WATCH_S if unused else 0.0
        connection, sender = self._connection, self._sender
        self._connection = self._sender = None
        if connection is not None:
            await self._connections.close(connection, sender)

    async def _open_sender(self) -> Sender:
        async with self._opening:  # batches that leave at the same time need one
            if self._sender is None:
                connection, self._sender = await self.target.open(self._connections, again=self._was_open)
                self._connection = connection
                self.max_body_bytes = connection.broker.capabilities.max_body_bytes
                if self._was_open:
                    self._spawn(self._watch())  # the last one ended when it gave the sender up
                self._was_open = True
            return self._sender

    async def _open_again(self) -> Sender:
        """Open what was given up while nothing was sent."""
        if not self._was_open:
            raise Unreachable(f"there is no connection to {self.target.channel!r} yet")
        return await self._open_sender()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _retry_delays_s() -> Iterator[float]:
    return delays_s(ENDLESS, longest_s=_LONGEST_RETRY_S)


def _consecutive(handles: Sequence[Handle]) -> Iterator[Sequence[Handle]]:
    """Split where numbers are missing: those of a call to a broker count up from the first."""
    begin = 0
    for at in range(1, len(handles) + 1):
        if at == len(handles) or handles[at].seq != handles[at - 1].seq + 1:
            yield handles[begin:at]
            begin = at
