"""Receives from a RabbitMQ queue; the window is ours, the broker's prefetch only follows it in coarse steps.

RabbitMQ fixes a consumer's prefetch when the consumer begins (`basic.qos` changes nothing for one that runs, and
`global` is refused by quorum queues). So the window is kept here: what the broker sent beyond it is *parked*,
unacknowledged and untouched, and handed out oldest first as the window allows. Since nothing parked was ever
processed, a crash repeats no work. Parked messages are lost to other consumers, so

* a consumer begins with the window and a quarter as its prefetch: the quarter is on its way while a batch is
  acknowledged, and a window below 4, chosen for long tasks, parks nothing;
* a wider window begins a new consumer with a prefetch of the next coarse step, after which small changes are free;
* what is parked goes back when nobody asks for it, or when another consumer of the queue has nothing to do.

On a queue that counts deliveries (quorum) giving back is not free. There at most one window is parked, also while
consumers are exchanged and after the window has become narrower; a message goes back at most once, and not at all
where that would bring it within one of its limit (`returning`).

A new consumer must not disturb the order: large messages on their way while a consumer is cancelled are refused
by the client library and come back late. Acknowledgements are therefore held back until the old consumer has used
up its prefetch (then nothing can be on its way) and is cancelled; then they are sent, and the new one begins.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pika import spec
from pika.exceptions import AMQPError

from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.core.round_trip import SLACK_S, RoundTrip
from flyball.brokers.port import BrokerError, Delivery, NoSuchChannel
from flyball.brokers.rabbitmq.codec import APP_ID, from_wire
from flyball.brokers.rabbitmq.connection import Link, OpenChannel, channel_error
from flyball.brokers.rabbitmq.management import Counting
from flyball.brokers.rabbitmq.policy import counted_prefetch, snug_prefetch, wanted_prefetch
from flyball.brokers.rabbitmq.returning import Returnable, give_back_beyond, may_return
from flyball.errors import FlyballError

_IDLE_S = 1.0  # parked messages that nobody took for so long go back
_QUIET_S = 0.05  # the longest to wait for an old consumer to use up its prefetch (an empty queue never fills it)
_NO_TAG = 1 << 62


class RabbitReceiver(BaseReceiver):
    """See `port.Receiver`. `look` tells (messages ready, consumers) of the queue, `counting` how it counts."""

    def __init__(
        self,
        link: Link,
        queue: str,
        window: int,
        *,
        pattern: bool,
        shown: str,
        look: Callable[[str], Awaitable[tuple[int, int]]],
        counting: Callable[[str], Awaitable[Counting]],
        finished: FinishedIds | None,
    ) -> None:
        super().__init__(window)
        self._link = link
        self.queue = queue
        self._pattern = pattern
        self._shown = shown
        self._look = look
        self._ask_counting = counting
        self._counting = Counting(counts=False)
        self._finished = finished
        self._channel: OpenChannel | None = None
        self._consumer = ""
        self._prefetch = 0
        self._parked: deque[Delivery] = deque()
        self._foreign: set[int] = set()  # tags of messages whose ids we did not give
        self._base = 0  # tags of this channel begin after it: they must not be taken for those of a lost one
        self._last_tag = 0
        self._held: list[Delivery] | None = None
        self._taken_s = time.monotonic()
        self._failure: FlyballError | None = None
        self._trip: RoundTrip | None = None  # where the round trip counts
        self._counted_tag = 0  # where it counts: the last delivery that was taken into account
        self._wake_tag = _NO_TAG  # … and the one that frees enough places to be worth looking
        self._answer_s: float | None = None  # how long the broker took to answer a question, lately
        self._peak = self._last_peak = window  # widest window of this second and of the last
        self._change: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def occupied(self) -> int:
        out = len(self._out)
        if self._trip is None:
            return out
        self._count_arrivals(self._trip)
        held = 0 if self._held is None else len(self._held)
        most = max(0, self._prefetch - out - len(self._parked) - held)
        return out + self._trip.open(time.monotonic(), most)

    @property
    def round_trip_s(self) -> float:
        return 0.0 if self._trip is None else self._trip.mean_s or 0.0

    def count_round_trip(self) -> bool:
        if self._trip is None:
            self._trip = RoundTrip()
            if self._answer_s is not None:
                self._trip.asked(self._answer_s)
            self._answers_free_places = True
            self._counted_tag = self._last_tag
            self._wake_tag = 0
        self._poll_s = SLACK_S  # nobody tells when an answer has not come
        return True

    def _count_arrivals(self, trip: RoundTrip) -> None:
        """Deliveries are numbered, so they need not be counted one by one: at full speed that would show.

        Each answers an acknowledgement, so it frees a place. Of a wide window places are handed out several at a
        time: whoever waits is woken when a sixteenth of it has come.
        """
        count, self._counted_tag = self._last_tag - self._counted_tag, self._last_tag
        if count:
            trip.arrived(count, time.monotonic(), more=len(self._parked) > count)
        self._wake_tag = self._last_tag + max(1, self._window // 16)

    async def open(self) -> None:
        await self._connect()
        self._link.on_lost.append(self._lost)
        self._link.waiting += 1
        self._keeper = asyncio.create_task(self._keep())

    # --- what BaseReceiver asks for ---------------------------------------------------------------------------

    async def _take(self, limit: int) -> Sequence[Delivery]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._start_change(self._reconnect)
            raise failure
        if not self._consumer and self._channel is not None:
            self._start_change(self._exchange_consumer)
        parked = self._parked
        if not parked:
            return ()
        self._taken_s = now_s = time.monotonic()
        taken: list[Delivery] = []
        finished = self._finished
        if finished is None or not len(finished):
            while parked and len(taken) < limit:
                taken.append(parked.popleft())
            return taken
        repeats = []
        while parked and len(taken) < limit:
            delivery = parked.popleft()
            if finished.seen(delivery.message.id, now_s) and delivery.tag not in self._foreign:
                repeats.append(delivery)
            else:
                taken.append(delivery)
        if repeats:
            await self._acknowledge(repeats, next(iter(taken), None))
        return taken

    async def _acknowledge(self, deliveries: Sequence[Delivery], before: Delivery | None = None) -> None:
        if self._finished is not None:
            foreign = self._foreign
            if foreign:
                ids = [one.message.id for one in deliveries if one.tag not in foreign]
                foreign.difference_update([one.tag for one in deliveries])
            else:
                ids = [one.message.id for one in deliveries]
            self._finished.add(ids, time.monotonic())
        if self._held is not None:
            self._held += deliveries
        else:
            self._tell(deliveries, before)

    def _tell(self, deliveries: Sequence[Delivery], before: Delivery | None = None) -> None:
        """Acknowledge; all those older than anything still open with one frame."""
        channel = self._channel
        if channel is None or not channel.is_open:
            return  # they went back with the lost channel and will be delivered again
        base = self._base
        tags = sorted([one.tag for one in deliveries if one.tag > base])
        # Deliveries are handed out and kept in the order of their tags.
        oldest_open = min(
            next(iter(self._out), _NO_TAG),
            self._parked[0].tag if self._parked else _NO_TAG,
            before.tag if before is not None else _NO_TAG,
        )
        if self._trip is not None:
            self._count_arrivals(self._trip)
            self._trip.settled(len(tags), time.monotonic())
        with suppress(AMQPError):
            older = [tag for tag in tags if tag < oldest_open]
            if older:
                channel.raw.basic_ack(older[-1] - base, multiple=True)
            for tag in tags[len(older) :]:
                channel.raw.basic_ack(tag - base)

    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None:
        channel = self._channel
        if channel is None or not channel.is_open:
            return
        with suppress(AMQPError):
            for one in deliveries:
                self._foreign.discard(one.tag)
                if one.tag > self._base:
                    channel.raw.basic_nack(one.tag - self._base, requeue=requeue)
        self._arrived()  # their places are free at once

    async def _release(self, unsettled: Sequence[Delivery]) -> None:  # noqa: ARG002  closing the channel gives all back
        if self._change is not None:
            self._change.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            self._link.waiting -= 1
            self._link.on_lost.remove(self._lost)
        self._flush_held()
        self._parked.clear()
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def set_window(self, window: int) -> None:
        super().set_window(window)
        self._peak = max(self._peak, window)
        self._fit()

    def _fit(self) -> None:
        if self._channel is not None and self._wanted_prefetch() != self._prefetch:
            self._start_change(self._exchange_consumer)

    def _wanted_prefetch(self) -> int:
        if self._window == 0 and (self._trip is not None or self._counting.counts):
            return self._prefetch
        if self._counting.counts:
            return counted_prefetch(self._window, self._prefetch, self._peak, self._counting.limit)
        if self._trip is None:
            return wanted_prefetch(self._window, self._prefetch)
        return snug_prefetch(self._window, self._prefetch, max(self._peak, self._last_peak))

    # --- deliveries -------------------------------------------------------------------------------------------

    def _delivered(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._deliver(method.delivery_tag, method.redelivered, method.routing_key, properties, body)

    def _deliver(self, number: int, redelivered: bool, routing_key: str, properties: Any, body: bytes) -> None:
        message, count = from_wire(properties, body)
        self._last_tag = tag = self._base + number
        if properties.app_id != APP_ID and self._finished is not None:
            self._foreign.add(tag)
        channel = routing_key if self._pattern else self.queue
        if not self._parked or tag >= self._wake_tag:
            self._wake_tag = _NO_TAG
            self._arrived()
        if not redelivered:
            self._parked.append(Delivery(message, channel, tag, False, 1))
            return
        if count is not None:
            if not self._counting.counts:
                self._counting = Counting(counts=True)
            count += 1
        self._parked.append(Delivery(message, channel, tag, True, count))

    # --- the consumer at the broker ---------------------------------------------------------------------------

    def _start_change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Only one change at a time; each ends by looking whether the next is due."""
        if self._closed or (self._change is not None and not self._change.done()):
            return

        async def guarded() -> None:
            try:
                await change()
            except FlyballError as error:
                self._failure = error
                self._arrived()
            except (AMQPError, TimeoutError) as error:
                if self._channel is not None and self._channel.is_open:
                    self._failure = channel_error(error, self.queue, self._shown)
                    self._arrived()

        self._change = asyncio.create_task(guarded())

    async def _connect(self) -> None:
        await self._link.open()
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self.queue, passive=True)
        except (AMQPError, TimeoutError) as error:
            raise channel_error(error, self.queue, self._shown) from None
        self._counting = await self._ask_counting(self.queue)
        handlers, number = channel.raw.connection.handlers, channel.raw.channel_number
        handlers[number] = self._deliver

        def closed(_reason: BaseException) -> None:
            handlers.pop(number, None)  # the number will be another channel's
            self._channel_lost(channel)

        channel.on_close = closed
        channel.raw.add_on_cancel_callback(lambda _: self._cancelled())
        self._channel, self._base, self._consumer, self._prefetch = channel, self._last_tag, "", 0
        await self._exchange_consumer()

    async def _reconnect(self) -> None:
        if self._channel is None or not self._channel.is_open:
            await self._connect()

    async def _exchange_consumer(self) -> None:
        """Bring the broker's consumer in line with the window."""
        while (channel := self._channel) is not None and not self._closed:
            prefetch = self._wanted_prefetch()
            if prefetch == 0 or (self._consumer and prefetch == self._prefetch):
                return
            if not self._consumer and not self._has_room(prefetch):
                return  # `receive` asks again
            await self._set_prefetch(channel, prefetch)  # while the old consumer still goes on
            old, self._held = self._consumer, []
            try:
                if old:
                    await self._quiet()
                    if self._counting.counts:
                        await self._cancel(channel)
                    else:
                        channel.raw.basic_cancel(old)  # not waited for: the broker takes what comes after in order
            finally:
                self._flush_held()
            if not self._has_room(prefetch):
                return
            self._prefetch = prefetch
            self._consumer = f"flyball-{id(self):x}-{self._last_tag}"
            await channel.call(channel.raw.basic_consume, self.queue, self._delivered, consumer_tag=self._consumer)
            channel.raw._cancelled.discard(old)  # else the library remembers it for as long as the channel lives

    async def _set_prefetch(self, channel: OpenChannel, prefetch: int) -> None:
        """For consumers that begin later; the broker answers, as fast as it answers acknowledgements."""
        asked_s = time.monotonic()
        await channel.call(channel.raw.basic_qos, prefetch_count=prefetch)
        self._answer_s = time.monotonic() - asked_s

    async def _time_an_answer(self) -> None:
        channel = self._channel
        if channel is not None and self._trip is not None and self._prefetch:
            await self._set_prefetch(channel, self._prefetch)
            assert self._answer_s is not None
            self._trip.asked(self._answer_s)

    async def _quiet(self) -> None:
        """Wait until nothing can be on its way: everything the old consumer may hold has come."""
        deadline = time.monotonic() + _QUIET_S
        while len(self._out) + len(self._parked) + len(self._held or ()) < self._prefetch:
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.001)

    def _has_room(self, prefetch: int) -> bool:
        """Whether at most one window is parked once a new consumer has sent all it may; on queues that count."""
        if not self._counting.counts:
            return True
        self._give_back_beyond(max(self._peak, 1))
        if len(self._out) + len(self._parked) <= max(2 * self._peak - prefetch, 0):
            return True
        self._prefetch = 0
        return False

    async def _cancel(self, channel: OpenChannel) -> None:
        consumer, self._consumer = self._consumer, ""
        await channel.call(partial(_cancel_keeping_deliveries, channel.raw), consumer)

    def _flush_held(self) -> None:
        held, self._held = self._held, None
        if held:
            self._tell(held)

    # --- keeping little from others ---------------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._closed:
            await asyncio.sleep(_IDLE_S)
            if not self._counting.known:
                self._counting = await self._ask_counting(self.queue)
            if self._consumer:
                self._fit()
            self._last_peak, self._peak = self._peak, self._window
            if await self._should_let_go():
                self._start_change(self._let_go)
            elif self._trip is not None:
                self._start_change(self._time_an_answer)

    async def _should_let_go(self) -> bool:
        if time.monotonic() - self._taken_s < _IDLE_S or not any(map(self.may_return, self._parked)):
            return False
        busy = self._window > 0 and len(self._out) >= self._window
        return not busy or await self._others_starve()

    async def _others_starve(self) -> bool:
        try:
            ready, consumers = await self._look(self.queue)
        except BrokerError:
            return False
        return ready == 0 and consumers > bool(self._consumer)

    async def _let_go(self) -> None:
        """Stop consuming and give back what is parked and may go; the next `receive` begins again."""
        if self._consumer and self._channel is not None:
            await self._cancel(self._channel)
            self._prefetch = 0
        if self._counting.counts:
            self._counting = await self._ask_counting(self.queue)  # a policy may have changed it
        self._give_back_beyond(0)
        self._arrived()

    def _give_back_beyond(self, kept: int) -> None:
        channel = self._channel
        if channel is None:
            return  # all went back with the lost channel
        self._parked, back = give_back_beyond(kept, self._parked, self.may_return)
        for delivery in back:
            self._foreign.discard(delivery.tag)
            channel.raw.basic_nack(delivery.tag - self._base, requeue=True)

    def may_return(self, delivery: Delivery) -> bool:
        known = self._counting.known or not self._counting.counts
        return known and may_return(Returnable(delivery.redelivered, delivery.attempt, self._counting.limit))

    async def withdraw(self) -> list[Delivery]:
        if self._change is not None:
            self._change.cancel()
            await asyncio.gather(self._change, return_exceptions=True)
        with suppress(AMQPError, TimeoutError):
            self._flush_held()
            await self._let_go()
        rest = list(self._parked)
        self._parked.clear()
        self._out.update([(delivery.tag, delivery) for delivery in rest])
        return rest

    # --- losing the broker ------------------------------------------------------------------------------------

    def _cancelled(self) -> None:
        """The broker ended the consumer: the queue was deleted, or its node went away."""
        self._consumer = ""
        self._failure = NoSuchChannel(f"the queue {self.queue!r} on {self._shown} was deleted: declare it again")
        self._arrived()

    def _channel_lost(self, channel: OpenChannel) -> None:
        if channel is self._channel:
            self._lost()

    def _lost(self) -> None:
        self._channel, self._consumer, self._prefetch, self._held = None, "", 0, None
        if self._trip is not None:
            self._trip.forget()
            self._counted_tag, self._wake_tag = self._last_tag, 0
        self._parked.clear()
        self._foreign.clear()
        self._forget()
        if self._change is not None:
            self._change.cancel()
            self._change = None
        self._start_change(self._reconnect)


def _cancel_keeping_deliveries(raw: Any, consumer: str, callback: Callable[[Any], None]) -> None:
    """`basic_cancel` of pika rejects what arrives until the broker has answered, and a queue that counts
    deliveries counts that; here the consumer stays known until then, so that such messages come to us."""

    def answered(frame: Any) -> None:
        raw._consumers.pop(consumer, None)
        callback(frame)

    answer = (spec.Basic.CancelOk, {"consumer_tag": consumer})
    raw._rpc(spec.Basic.Cancel(consumer_tag=consumer, nowait=False), answered, [answer])
