"""The receiver's consumer at the broker, and its exchange for one with another prefetch.

A consumer's prefetch is fixed when the consumer begins, so another prefetch means another consumer. The exchange
must not disturb the order: large messages on their way while a consumer is cancelled are refused by the client
library and come back late. Acknowledgements are therefore deferred until the old consumer has used up its prefetch
(then nothing can be on its way) and is cancelled; then they are sent, and the new consumer begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from pika.exceptions import AMQPError

from flyball.brokers.port import Delivery
from flyball.brokers.rabbitmq.connection import OpenChannel
from flyball.brokers.rabbitmq.errors import channel_error
from flyball.brokers.rabbitmq.pika_internals import cancel_and_keep_deliveries, forget_cancelled
from flyball.errors import FlyballError

_QUIET_S = 0.05  # when nothing arrived for this long, the queue may be empty
_DRAIN_S = 5.0  # the longest wait for an old consumer to use up its prefetch


class SwitchOwner(Protocol):
    """What the exchange of consumers needs of its receiver."""

    @property
    def closed(self) -> bool: ...

    @property
    def counts_deliveries(self) -> bool: ...

    @property
    def unacknowledged(self) -> int:
        """Deliveries that are in flight or parked."""

    def target_prefetch(self) -> int:
        """The prefetch that the consumer should have."""

    def make_room(self, prefetch: int) -> bool:
        """Return surplus messages; whether a new consumer with this prefetch may begin then."""

    def on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Park a delivery that arrived through pika."""

    def send_acks(self, deliveries: Sequence[Delivery]) -> None: ...

    def next_consumer_tag(self) -> str: ...

    @property
    def exclusive(self) -> bool:
        """Whether no other consumer may read the queue."""

    @property
    def consume_arguments(self) -> dict[str, Any] | None:
        """Arguments of the consumer besides the prefetch."""

    def fail(self, error: FlyballError) -> None:
        """Raise this error from the next `receive`."""


class ConsumerSwitch:
    """The channel and the consumer of one receiver. Steps that change them run one at a time."""

    def __init__(self, owner: SwitchOwner, queue: str, display_url: str) -> None:
        self._owner = owner
        self._queue = queue
        self._display_url = display_url
        self._step: asyncio.Task[None] | None = None
        self.channel: OpenChannel | None = None
        self.consumer_tag = ""
        """Empty while there is no consumer."""
        self.prefetch = 0
        self.deferred_acks: list[Delivery] | None = None
        """Acknowledgements that wait for the end of an exchange; None while there is no exchange."""
        self.answer_s: float | None = None
        """Seconds until the broker answered the last question."""

    def start(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step unless one is under way; each ends by checking whether the next is due."""
        if self._owner.closed or (self._step is not None and not self._step.done()):
            return

        async def guarded() -> None:
            try:
                await step()
            except FlyballError as error:
                self._owner.fail(error)
            except (AMQPError, TimeoutError) as error:
                if self.channel is not None and self.channel.is_open:
                    self._owner.fail(channel_error(error, self._queue, self._display_url))

        self._step = asyncio.create_task(guarded())

    def cancel_step(self) -> None:
        if self._step is not None:
            self._step.cancel()

    async def stop_step(self) -> None:
        """Cancel the step under way and wait until it has ended."""
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)

    def use(self, channel: OpenChannel) -> None:
        """Continue on a new channel, which has no consumer yet."""
        self.channel, self.consumer_tag, self.prefetch = channel, "", 0

    def lose(self) -> None:
        """Forget a channel that was closed: the broker delivers again what was not acknowledged."""
        self.channel, self.consumer_tag, self.prefetch, self.deferred_acks = None, "", 0, None
        self.cancel_step()
        self._step = None

    async def exchange(self) -> None:
        """Bring the broker's consumer in line with the window."""
        owner = self._owner
        while (channel := self.channel) is not None and not owner.closed:
            prefetch = owner.target_prefetch()
            if prefetch == 0 or (self.consumer_tag and prefetch == self.prefetch):
                return
            if not self.consumer_tag and not self._make_room(prefetch):
                return  # `receive` asks again
            await self._set_prefetch(channel, prefetch)  # while the old consumer still goes on
            old, self.deferred_acks = self.consumer_tag, []
            try:
                if old:
                    await self._drain(channel, prefetch)
                    if owner.counts_deliveries:
                        await self.cancel_consumer()
                    else:
                        channel.raw.basic_cancel(old)  # no need to wait: the broker handles what follows in order
            finally:
                self.send_deferred_acks()
            if not self._make_room(prefetch):
                return
            self.prefetch = prefetch
            self.consumer_tag = owner.next_consumer_tag()
            await channel.call(
                channel.raw.basic_consume,
                self._queue,
                owner.on_message,
                consumer_tag=self.consumer_tag,
                exclusive=owner.exclusive,
                arguments=owner.consume_arguments,
            )
            forget_cancelled(channel.raw, old)

    def _make_room(self, prefetch: int) -> bool:
        if self._owner.make_room(prefetch):
            return True
        self.prefetch = 0
        return False

    async def _set_prefetch(self, channel: OpenChannel, prefetch: int) -> None:
        """For consumers that begin later; the broker answers as fast as it answers acknowledgements."""
        start_s = time.monotonic()
        await channel.call(channel.raw.basic_qos, prefetch_count=prefetch)
        self.answer_s = time.monotonic() - start_s

    async def measure_answer(self) -> float | None:
        """Ask the broker something that changes nothing; the seconds until its answer, None without a consumer."""
        if self.channel is None or not self.prefetch:
            return None
        await self._set_prefetch(self.channel, self.prefetch)
        return self.answer_s

    async def _drain(self, channel: OpenChannel, next_prefetch: int) -> None:
        """Wait until nothing can be on its way: the consumer has its whole prefetch, or the queue has no more.

        Large messages take their time, and a queue that is empty never fills the prefetch. So when nothing has
        arrived for a moment, the broker is asked which it is.
        """
        start_s = quiet_s = time.monotonic()
        before = -1
        while (received := self._owner.unacknowledged + len(self.deferred_acks or ())) < self.prefetch:
            now_s = time.monotonic()
            if received != before:
                before, quiet_s = received, now_s
            elif now_s - start_s > _DRAIN_S:
                return  # the queue has more, for other consumers
            elif now_s - quiet_s > _QUIET_S:
                answer = await channel.call(channel.raw.queue_declare, self._queue, passive=True)
                if not answer.message_count:
                    # What the queue sent before may come after this answer; it comes before that of the next.
                    await self._set_prefetch(channel, next_prefetch)
                    return
                quiet_s = time.monotonic()
            await asyncio.sleep(0.001)

    async def end_consumer(self) -> None:
        """Cancel the consumer when nothing can be on its way to it."""
        channel = self.channel
        if channel is None or not self.consumer_tag:
            return
        self.deferred_acks = []
        try:
            await self._drain(channel, self.prefetch)
            await self.cancel_consumer()
        finally:
            self.send_deferred_acks()

    async def cancel_consumer(self) -> None:
        if self.channel is not None:
            consumer_tag, self.consumer_tag = self.consumer_tag, ""
            await self.channel.call(partial(cancel_and_keep_deliveries, self.channel.raw), consumer_tag)

    def send_deferred_acks(self) -> None:
        deferred, self.deferred_acks = self.deferred_acks, None
        if deferred:
            self._owner.send_acks(deferred)
