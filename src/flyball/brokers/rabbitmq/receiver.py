"""Receives from a RabbitMQ queue: the window is kept here, the broker's prefetch only follows it in coarse steps.

RabbitMQ fixes a consumer's prefetch when the consumer begins (`basic.qos` changes nothing for one that runs, and
`global` is refused by quorum queues). So the window is kept here: what the broker sent beyond it is *parked*,
unacknowledged and untouched, and handed out oldest first as the window allows. Since nothing parked was ever
processed, a crash repeats no work. Parked messages are lost to other consumers, so

* a consumer begins with the window and a quarter as its prefetch: the quarter is on its way while a batch is
  acknowledged, and a window below 4, chosen for long tasks, parks nothing;
* a wider window begins a new consumer with a prefetch of the next coarse step, after which small changes are free;
* what is parked goes back when `receive` is not called, or when another consumer of the queue has nothing to do.

On a queue that counts deliveries (quorum) a return is not free. There at most one window is parked, also while
consumers are exchanged and after the window has become narrower; a message goes back at most once, and not at all
where that would bring it within one of its limit.

A queue of a group has one reader at a time (`sole`), so what is parked is lost to nobody. It stays and is handled
before the queue has another reader: what goes back could come after later messages.

With a `priority` the broker chooses among the readers that have subscribed. Then a consumer keeps its prefetch and
is never cancelled, which would pass the queue on while messages are in flight here. It ends with its channel:
then all that is not settled goes back at once, in order, and the next reader begins with it.

`policy` makes these decisions, `consumer_switch` exchanges consumers at the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from pika.exceptions import AMQPError

from flyball.backoff import ReconnectDelay
from flyball.brokers.core.dedup import FinishedIds
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.core.round_trip import SLACK_S, RoundTrip
from flyball.brokers.port import BrokerError, Delivery
from flyball.brokers.rabbitmq import policy
from flyball.brokers.rabbitmq.codec import APP_ID, from_wire
from flyball.brokers.rabbitmq.connection import Link
from flyball.brokers.rabbitmq.consumer_switch import ConsumerSwitch
from flyball.brokers.rabbitmq.errors import channel_error
from flyball.brokers.rabbitmq.policy import DeliveryCounting
from flyball.errors import FlyballError

_NO_TAG = 1 << 62


class RabbitReceiver(BaseReceiver):
    """See `port.Receiver`.

    `count_queue` asks for (messages ready, consumers) of the queue, `ask_counting` how it counts deliveries.
    `sole`: nobody else reads the queue at the same time; `exclusive` lets the broker refuse others; `priority`:
    it lets them wait until no reader of a higher one is there.
    """

    def __init__(
        self,
        link: Link,
        queue: str,
        window: int,
        *,
        pattern: bool,
        display_url: str,
        count_queue: Callable[[str], Awaitable[tuple[int, int]]],
        ask_counting: Callable[[str], Awaitable[DeliveryCounting]],
        finished: FinishedIds | None,
        sole: bool = False,
        exclusive: bool = False,
        priority: int | None = None,
    ) -> None:
        super().__init__(window)
        self._link = link
        self.queue = queue
        self._pattern = pattern
        self._display_url = display_url
        self._count_queue = count_queue
        self._ask_counting = ask_counting
        self._counting = DeliveryCounting(counts=False)
        self._finished = finished
        self._sole, self._exclusive, self.priority = sole, exclusive, priority
        self.fixed_prefetch = None if priority is None else policy.fixed_prefetch(window)
        self._switch = ConsumerSwitch(self, queue, display_url)
        self._parked: deque[Delivery] = deque()
        self._foreign: set[int] = set()  # tags of messages whose ids other programs made
        self._base = 0  # tags of this channel begin after it: they must not be confused with those of a lost one
        self._last_tag = 0
        self._last_hand_out_s = time.monotonic()
        self._failure: FlyballError | None = None
        self._reconnect_delay = ReconnectDelay()
        self._round_trip: RoundTrip | None = None  # where the round trip counts
        self._counted_tag = 0  # where it counts: the last delivery that was counted
        self._wake_tag = _NO_TAG  # … and the one that frees enough slots to wake the caller
        self._peak = self._last_peak = window  # widest window of this second and of the last
        self._maintenance: asyncio.Task[None] | None = None

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def occupied(self) -> int:
        out = len(self._in_flight)
        if self._round_trip is None:
            return out
        self._count_arrivals(self._round_trip)
        deferred = len(self._switch.deferred_acks or ())
        most = max(0, self._switch.prefetch - out - len(self._parked) - deferred)
        return out + self._round_trip.outstanding(time.monotonic(), most)

    @property
    def round_trip_s(self) -> float:
        return 0.0 if self._round_trip is None else self._round_trip.mean_s or 0.0

    def count_round_trip(self) -> bool:
        if self._round_trip is None:
            self._round_trip = RoundTrip()
            if self._switch.answer_s is not None:
                self._round_trip.add_probe(self._switch.answer_s)
            self._reply_frees_slot = True
            self._counted_tag = self._last_tag
            self._wake_tag = 0
        self._poll_s = SLACK_S  # there is no event when an answer does not come
        return True

    def _count_arrivals(self, trip: RoundTrip) -> None:
        """Count deliveries by their numbers: one by one would be measurable at full speed.

        Each answers an acknowledgement, so it frees a slot. Slots of a wide window are filled several at a time:
        a waiting `receive` is woken when a sixteenth of the window has arrived.
        """
        count, self._counted_tag = self._last_tag - self._counted_tag, self._last_tag
        if count:
            trip.add_arrivals(count, time.monotonic(), more=len(self._parked) > count)
        self._wake_tag = self._last_tag + max(1, self._window // 16)

    async def open(self) -> None:
        try:
            await self._connect()
        except (AMQPError, TimeoutError) as error:  # such as another one's exclusive consumer
            raise channel_error(error, self.queue, self._display_url) from None
        self._link.on_lost.append(self._on_loss)
        self._link.pending_answers += 1
        self._maintenance = asyncio.create_task(self._maintain())

    # --- for BaseReceiver -------------------------------------------------------------------------------------

    async def _fetch(self, limit: int) -> Sequence[Delivery]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._switch.start(self._reconnect)
            raise failure
        if not self._switch.consumer_tag and self._switch.channel is not None:
            self._switch.start(self._switch.exchange)
        parked = self._parked
        if not parked:
            return ()
        self._last_hand_out_s = now_s = time.monotonic()
        deliveries: list[Delivery] = []
        finished = self._finished
        if finished is None or not len(finished):
            while parked and len(deliveries) < limit:
                deliveries.append(parked.popleft())
            return deliveries
        repeats = []
        while parked and len(deliveries) < limit:
            delivery = parked.popleft()
            if finished.contains((delivery.channel, delivery.message.id), now_s) and (
                delivery.tag not in self._foreign
            ):
                repeats.append(delivery)
            else:
                deliveries.append(delivery)
        if repeats:
            await self._acknowledge(repeats, next(iter(deliveries), None))
        return deliveries

    async def _acknowledge(self, deliveries: Sequence[Delivery], before: Delivery | None = None) -> None:
        if self._finished is not None:
            foreign = self._foreign
            if foreign:
                ids = [(each.channel, each.message.id) for each in deliveries if each.tag not in foreign]
                foreign.difference_update([delivery.tag for delivery in deliveries])
            else:
                ids = [(each.channel, each.message.id) for each in deliveries]
            self._finished.add(ids, time.monotonic())
        if self._switch.deferred_acks is not None:
            self._switch.deferred_acks += deliveries
        else:
            self.send_acks(deliveries, before)

    def send_acks(self, deliveries: Sequence[Delivery], before: Delivery | None = None) -> None:
        """Acknowledge; all those older than anything still open with one frame."""
        channel = self._switch.channel
        if channel is None or not channel.is_open:
            return  # they went back with the lost channel and will be delivered again
        base = self._base
        tags = sorted([delivery.tag for delivery in deliveries if delivery.tag > base])
        # Deliveries are handed out and kept in the order of their tags.
        oldest_open = min(
            next(iter(self._in_flight), _NO_TAG),
            self._parked[0].tag if self._parked else _NO_TAG,
            before.tag if before is not None else _NO_TAG,
        )
        if self._round_trip is not None:
            self._count_arrivals(self._round_trip)
            self._round_trip.add_settled(len(tags), time.monotonic())
        with suppress(AMQPError):
            older = [tag for tag in tags if tag < oldest_open]
            if older:
                channel.raw.basic_ack(older[-1] - base, multiple=True)
            for tag in tags[len(older) :]:
                channel.raw.basic_ack(tag - base)

    async def _return(self, deliveries: Sequence[Delivery], requeue: bool) -> None:
        channel = self._switch.channel
        if channel is None or not channel.is_open:
            return
        with suppress(AMQPError):
            for delivery in deliveries:
                self._foreign.discard(delivery.tag)
                if delivery.tag > self._base:
                    channel.raw.basic_nack(delivery.tag - self._base, requeue=requeue)
        self._notify()  # their slots are free at once

    async def _release(self, unsettled: Sequence[Delivery]) -> None:  # noqa: ARG002  closing the channel gives all back
        self._switch.cancel_step()
        if self._maintenance is not None:
            self._maintenance.cancel()
            self._link.pending_answers -= 1
            self._link.on_lost.remove(self._on_loss)
        self._switch.send_deferred_acks()
        self._parked.clear()
        channel, self._switch.channel = self._switch.channel, None
        if channel is not None:
            await self._link.close_channel(channel)

    def set_window(self, window: int) -> None:
        super().set_window(window)
        self._peak = max(self._peak, window)
        self._adjust_prefetch()

    def _adjust_prefetch(self) -> None:
        if self._switch.channel is not None and self.target_prefetch() != self._switch.prefetch:
            self._switch.start(self._switch.exchange)

    # --- deliveries -------------------------------------------------------------------------------------------

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        properties = channel.connection.large_properties.pop(channel.channel_number, properties)
        self._deliver(method.delivery_tag, method.redelivered, method.routing_key, properties, body)

    def _deliver(self, number: int, redelivered: bool, routing_key: str, properties: Any, body: bytes) -> None:
        # Nothing may be raised here: it would end the connection, and the message would come again, and again.
        message, count, unreadable = from_wire(properties, body)
        unreadable = properties.unreadable or unreadable
        self._last_tag = tag = self._base + number
        if properties.app_id != APP_ID and self._finished is not None:
            self._foreign.add(tag)
        channel = routing_key if self._pattern else self.queue
        if not self._parked or tag >= self._wake_tag:
            self._wake_tag = _NO_TAG
            self._notify()
        if not redelivered:
            self._parked.append(Delivery(message, channel, tag, False, 1, None, None, unreadable))
            return
        if count is not None:
            if not self._counting.counts:
                self._counting = DeliveryCounting(counts=True)
            count += 1
        self._parked.append(Delivery(message, channel, tag, True, count, None, None, unreadable))

    # --- for the exchange of consumers ------------------------------------------------------------------------

    @property
    def counts_deliveries(self) -> bool:
        return self._counting.counts

    @property
    def exclusive(self) -> bool:
        return self._exclusive

    @property
    def consume_arguments(self) -> dict[str, Any] | None:
        return None if self.priority is None else {"x-priority": self.priority}

    @property
    def unacknowledged(self) -> int:
        return len(self._in_flight) + len(self._parked)

    def target_prefetch(self) -> int:
        if self.fixed_prefetch is not None:
            return self.fixed_prefetch
        return policy.target_prefetch(
            self._window,
            self._switch.prefetch,
            peak=self._peak,
            last_peak=self._last_peak,
            counting=self._counting,
            round_trip=self._round_trip is not None,
        )

    def make_room(self, prefetch: int) -> bool:
        if not self._counting.counts or self.fixed_prefetch is not None:
            return True
        self._return_parked(keep=max(self._peak, 1))
        return policy.has_room(self.unacknowledged, prefetch, self._peak)

    def next_consumer_tag(self) -> str:
        return f"flyball-{id(self):x}-{self._last_tag}"

    def fail(self, error: FlyballError) -> None:
        self._failure = error
        self._notify()

    # --- the channel ------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        await self._link.open()
        channel = await self._link.channel()
        try:
            await channel.call(channel.raw.queue_declare, self.queue, passive=True)
        except (AMQPError, TimeoutError) as error:
            raise channel_error(error, self.queue, self._display_url) from None
        self._counting = await self._ask_counting(self.queue)
        handlers, number = channel.raw.connection.handlers, channel.raw.channel_number
        handlers[number] = self._deliver

        def on_close(_reason: BaseException) -> None:
            handlers.pop(number, None)  # the number will be another channel's
            if channel is self._switch.channel:
                self._on_loss()

        channel.on_close = on_close
        channel.raw.add_on_cancel_callback(lambda _: self._on_cancel())
        self._switch.use(channel)
        self._base = self._last_tag
        self._reconnect_delay.opened(time.monotonic())
        await self._switch.exchange()

    async def _reconnect(self) -> None:
        if self._switch.channel is None or not self._switch.channel.is_open:
            await asyncio.sleep(self._reconnect_delay.remaining_s(time.monotonic()))
            await self._connect()

    def _on_cancel(self) -> None:
        """The broker ended the consumer: the queue was deleted, its node went away, or an ack took too long (4.3).

        A new channel finds out which: without a queue it fails, otherwise it receives again what was in flight.
        """
        if self._switch.channel is not None:
            with suppress(AMQPError):
                self._switch.channel.raw.close()

    def _on_loss(self) -> None:
        self._reconnect_delay.lost(time.monotonic())
        self._switch.lose()
        if self._round_trip is not None:
            self._round_trip.reset()
            self._counted_tag, self._wake_tag = self._last_tag, 0
        self._parked.clear()
        self._foreign.clear()
        self._drop_in_flight()
        self._switch.start(self._reconnect)

    # --- what is parked must not starve other consumers -------------------------------------------------------

    async def _maintain(self) -> None:
        while not self._closed:
            await asyncio.sleep(policy.IDLE_S)
            if not self._counting.known:
                self._counting = await self._ask_counting(self.queue)
            if self._switch.consumer_tag:
                self._adjust_prefetch()
            self._last_peak, self._peak = self._peak, self._window
            if await self._should_stop_consuming():
                self._switch.start(self._stop_consuming)
            elif self._round_trip is not None:
                self._switch.start(self._measure_answer)

    async def _measure_answer(self) -> None:
        answer_s = await self._switch.measure_answer()
        if answer_s is not None and self._round_trip is not None:
            self._round_trip.add_probe(answer_s)

    async def _should_stop_consuming(self) -> bool:
        if self._sole or not policy.is_idle(time.monotonic() - self._last_hand_out_s):
            return False
        if not any(map(self.may_return, self._parked)):
            return False
        if not policy.is_window_full(len(self._in_flight), self._window):
            return True
        try:
            ready, consumers = await self._count_queue(self.queue)
        except BrokerError:
            return False
        return policy.others_starve(ready, consumers, consuming=bool(self._switch.consumer_tag))

    async def _stop_consuming(self) -> None:
        """Cancel the consumer and return what is parked and may go; the next `receive` begins again."""
        if self._switch.consumer_tag and self._switch.channel is not None:
            await self._switch.cancel_consumer()
            self._switch.prefetch = 0
        if self._counting.counts:
            self._counting = await self._ask_counting(self.queue)  # a policy may have changed it
        self._return_parked(keep=0)
        self._notify()

    def _return_parked(self, keep: int) -> None:
        channel = self._switch.channel
        if channel is None:
            return  # all went back with the lost channel
        self._parked, back = policy.split_parked(keep, self._parked, self.may_return)
        for delivery in back:
            self._foreign.discard(delivery.tag)
            channel.raw.basic_nack(delivery.tag - self._base, requeue=True)

    def may_return(self, delivery: Delivery) -> bool:
        if self._sole:
            return False  # the next reader could overtake it: quorum queues take back what is returned late
        return self._counts_little(delivery)

    def _counts_little(self, delivery: Delivery) -> bool:
        """Whether another delivery brings a message no nearer to its limit than it should."""
        known = self._counting.known or not self._counting.counts
        return known and policy.may_return(
            redelivered=delivery.redelivered, attempt=delivery.attempt, limit=self._counting.limit
        )

    async def withdraw(self) -> list[Delivery]:
        if self.priority is not None:
            return await self._withdraw_uncountable()
        await self._switch.stop_step()
        with suppress(AMQPError, TimeoutError):
            self._switch.send_deferred_acks()
            if self._sole:
                await self._switch.end_consumer()
            else:
                await self._stop_consuming()
        rest = list(self._parked)
        self._parked.clear()
        return self._count_in_flight(rest)

    async def _withdraw_uncountable(self) -> list[Delivery]:
        """What is parked goes back when the channel closes, but for messages near their limit and those before.

        The lowest priority is pushed aside by others. A consumer that ends then must have settled all that it has.
        """
        if self.priority == 0:
            with suppress(AMQPError, TimeoutError):
                # What the queue sent before may come after the first answer; it comes before the second.
                await self._switch.measure_answer()
                await self._switch.measure_answer()
            return self._count_in_flight([self._parked.popleft() for _ in range(len(self._parked))])
        last = max((at for at, each in enumerate(self._parked, 1) if not self._counts_little(each)), default=0)
        return self._count_in_flight([self._parked.popleft() for _ in range(last)])

    def _count_in_flight(self, rest: list[Delivery]) -> list[Delivery]:
        self._in_flight.update([(delivery.tag, delivery) for delivery in rest])
        return rest
