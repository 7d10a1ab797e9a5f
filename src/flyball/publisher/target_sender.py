"""One target of a publisher: what waits for it, what is on the way to it, and the policy that decides.

Carries out what `policy` decides; one task a batch, none a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from flyball.backoff import delays_s
from flyball.brokers import Broker, Message, Sender, SendResult, connect
from flyball.brokers.port import BrokerError, Kind, TooLarge, Unconfirmed, Unreachable
from flyball.control.record import LoopRecord
from flyball.errors import FlyballError, InvalidValue
from flyball.publisher import policy as rules
from flyball.publisher.handle import Handle, ReadyQueue
from flyball.steady_clock import SteadyClock

log = logging.getLogger(__name__)

_WATCH_S = 0.05
_KEPT_RECORDS = 2000
_BACKLOG_OF_SETTLED = 10_000
"""Messages that enough other targets have confirmed already wait up to this number for a target that is behind."""
_ENDLESS = 10**9

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

    async def open(self) -> tuple[Broker, Sender]:
        broker = await connect(self.url)
        try:
            if self.declare is not None:
                await broker.declare(self.channel, self.declare)
            sender = await broker.sender(self.channel, producer=self.producer)
            last = None if self.producer is None else await sender.last_sequence()
            if last is not None and last >= self.newest:
                raise InvalidValue(
                    f"{self.channel!r} holds message {last} of producer {self.producer!r} and this outbox begins "
                    f"with {self.newest}: these would be taken for repeats; name another producer"
                )
            return broker, sender
        except BaseException:
            await broker.close()
            raise


@dataclass(slots=True)
class LaneCounts:
    """Messages of one target, counted from the start of the publisher."""

    confirmed: int = 0
    repeated: int = 0
    rejected: int = 0
    skipped: int = 0
    batches: int = 0


@dataclass(frozen=True, slots=True)
class TargetStats:
    """One target of one channel: what is under way to it, its settings, and the controller's last step.

    `terms` are the parts of that step (estimates such as the rate and the round trip), `reason` says why.
    """

    channel: str
    target: int
    pending: int
    in_flight: int
    confirmed: int
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


class Lane:
    """Sends what it is given to one target until it is confirmed.

    `on_settled` is told of messages that this target was the last required to confirm, `on_rejected` of those
    that the broker will never take.
    """

    def __init__(
        self,
        target: Target,
        policy: rules.Policy,
        *,
        batch: int,
        on_settled: Callable[[list[Handle]], None],
        on_rejected: Callable[[Handle, BrokerError], None],
    ) -> None:
        self.target = target
        self.counts = LaneCounts()
        self.records: deque[LoopRecord] = deque(maxlen=_KEPT_RECORDS)
        self.trouble: FlyballError | None = None
        """Why the target took nothing the last time, None once it takes messages again."""
        self._policy = policy
        self._state = rules.start(policy, now_s(), batch=batch)
        self._on_settled, self._on_rejected = on_settled, on_rejected
        self._queue = ReadyQueue(ordered=policy.ordered)
        self._broker: Broker | None = None
        self._sender: Sender | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._skip_above = _BACKLOG_OF_SETTLED
        self._new = 0
        self._events: list[rules.Event] = []
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._delays: Iterator[float] = delays_s(_ENDLESS)
        self._closed = False

    def stats(self, channel: str, number: int) -> TargetStats:
        """This target, as number so many of its channel."""
        command, last = self._state.command, self.records[-1] if self.records else None
        return TargetStats(
            channel=channel,
            target=number,
            pending=self._state.pending,
            in_flight=self._state.in_flight,
            confirmed=self.counts.confirmed,
            batches=self.counts.batches,
            batch=command.most,
            poll_s=command.poll_s,
            window=command.window,
            terms={} if last is None else dict(last.parts),
            reason="" if last is None else last.reason,
        )

    # --- from the publisher -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. A broker that is not there is waited for in the background; a wrong channel is an error."""
        try:
            self._broker, self._sender = await self.target.open()
        except Unreachable as error:
            self.trouble = error
            self._tell(rules.Blocked(now_s()))
        self._spawn(self._watch())

    def open_later(self) -> None:
        """Connect in the background, for as long as it takes."""
        self._tell(rules.Blocked(now_s()))
        self._spawn(self._watch())

    def add(self, handles: Sequence[Handle]) -> None:
        self._queue.add(handles)
        self._new += len(handles)
        if len(self._queue) > self._skip_above:
            self._skip_settled()
            # Not again before it has doubled: looking through it costs as much as it is long.
            self._skip_above = max(_BACKLOG_OF_SETTLED, 2 * len(self._queue))
        self._wake()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._broker is not None:
            with suppress(BrokerError):
                await self._broker.close()

    @property
    def state(self) -> rules.State:
        return self._state

    @property
    def waiting(self) -> int:
        return len(self._queue)

    # --- deciding -----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Decide once for all that happens in this turn of the event loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        new, self._new = self._new, 0
        events, self._events = self._events, []
        if new:
            events.append(rules.Accepted(now_s(), new))
        if events:
            self._tell(*events)

    def _tell(self, *events: rules.Event) -> None:
        if self._closed:
            return
        if self._queue.urgent != self._state.urgent:
            events = (*events, rules.Urgent(events[-1].now_s, self._queue.urgent))
        self._state, decisions = rules.decide(self._policy, self._state, *events)
        self.records.extend(decisions.records)
        for batch in decisions.send:
            self.counts.batches += 1
            self._spawn(self._carry(batch, self._queue.take(batch.count)))
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
        self._tell(rules.Timer(now_s()))

    def _skip_settled(self) -> None:
        skipped = self._queue.drop_settled()
        if skipped:
            self.counts.skipped += skipped
            self._turn()  # what is withdrawn has to be known first
            self._tell(rules.Withdrawn(now_s(), skipped))

    # --- carrying out -------------------------------------------------------------------------------------------

    async def _carry(self, batch: rules.Batch, handles: list[Handle]) -> None:
        if self.target.producer is None:
            results = await self._send([handle.message for handle in handles])
        else:
            results = await self._send_numbered(handles)
        self._account(batch, handles, results)

    async def _send_numbered(self, handles: list[Handle]) -> list[SendResult]:
        """Run by run of consecutive numbers. After a failure none may follow: the log would take the missing ones
        for repeats when they come."""
        results: list[SendResult] = []
        for run in _consecutive(handles):
            results += await self._send([handle.message for handle in run], run[0].seq - 1)
            failed = [
                one.error for one in results if one.error and not isinstance(one.error, TooLarge | InvalidValue)
            ]
            if failed:
                results += [SendResult(handle.id, failed[0]) for handle in handles[len(results) :]]
                break
        return results

    async def _send(self, messages: list[Message], sequence: int | None = None) -> list[SendResult]:
        if self._sender is None:
            lost = Unreachable(f"there is no connection to {self.target.channel!r} yet")
            return [SendResult(message.id, lost) for message in messages]
        try:
            return await self._sender.send_batch(messages, sequence=sequence)
        except BrokerError as error:
            return [SendResult(message.id, error) for message in messages]
        except Exception as error:  # a fault of a client library must not leave a batch on its way for ever
            log.exception("%s: sending failed in a way that no broker error describes", self.target.channel)
            unknown = Unconfirmed(f"sending to {self.target.channel!r} raised {type(error).__name__}: {error}")
            return [SendResult(message.id, unknown) for message in messages]

    def _account(self, batch: rules.Batch, handles: list[Handle], results: list[SendResult]) -> None:
        again: list[Handle] = []
        stored = handles
        if any(result.error is not None for result in results):
            stored, again = self._sort_out(handles, results)
        self.counts.confirmed += len(stored)
        settled = [handle for handle in stored if handle._confirm()]
        if settled:
            self._on_settled(settled)
        if again:
            self.counts.repeated += len(again)
            self._queue.give_back(again)
            time_s = now_s()
            self._events.append(rules.Failed(time_s, batch, len(again), time_s + next(self._delays)))
        else:
            if self.trouble is not None:
                self.trouble, self._delays = None, delays_s(_ENDLESS)
            self._events.append(rules.Confirmed(now_s(), batch))
        self._wake()

    def _sort_out(
        self, handles: Iterable[Handle], results: Iterable[SendResult]
    ) -> tuple[list[Handle], list[Handle]]:
        """(stored, to be sent again); what no broker will ever take is rejected."""
        stored: list[Handle] = []
        again: list[Handle] = []
        for handle, result in zip(handles, results, strict=True):
            if result.error is None:
                # In an ordered lane everything from the first gap on goes again, to come in order at last.
                (again if again and self._policy.ordered else stored).append(handle)
            elif isinstance(result.error, TooLarge | InvalidValue):
                self.counts.rejected += 1
                self._on_rejected(handle, result.error)
            else:
                self.trouble = result.error
                again.append(handle)
        return stored, again

    async def _watch(self) -> None:
        """Notice what brokers do not announce: that they ask for silence, and that they are back."""
        while self._sender is None:
            for wait_s in delays_s(_ENDLESS, longest_s=2.0):
                await asyncio.sleep(wait_s)
                try:
                    self._broker, self._sender = await self.target.open()
                    break
                except FlyballError as error:
                    self.trouble = error
                except Exception as error:  # a fault of a client library must not end the waiting for the broker
                    log.exception(
                        "%s: connecting failed in a way that no broker error describes", self.target.channel
                    )
                    self.trouble = Unreachable(f"connecting raised {type(error).__name__}: {error}")
        while True:
            blocked = self._sender.blocked
            if blocked != self._state.blocked:
                self._tell(rules.Blocked(now_s()) if blocked else rules.Unblocked(now_s()))
            await asyncio.sleep(_WATCH_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _consecutive(handles: Sequence[Handle]) -> Iterator[Sequence[Handle]]:
    """Split where numbers are missing: those of a call to a broker count up from the first."""
    begin = 0
    for at in range(1, len(handles) + 1):
        if at == len(handles) or handles[at].seq != handles[at - 1].seq + 1:
            yield handles[begin:at]
            begin = at
