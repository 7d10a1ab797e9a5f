"""A pika channel that holds a goal: deliveries wait in the client until the window has a free slot."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeAlias

from flyball.brokers.core.round_trip import RoundTrip
from flyball.consumer.external.regulated import Regulated
from flyball.consumer.policy.controller import DITHER_S, ControllerOption
from flyball.consumer.policy.goals import Goal, lacks_messages
from flyball.errors import InvalidValue

_Method: TypeAlias = Callable[..., Any]


class PikaChannel(Protocol):
    """What `regulate` uses of a pika channel: a BlockingChannel, or the Channel of the other connections."""

    @property
    def connection(self) -> Any: ...
    @property
    def is_open(self) -> bool: ...
    @property
    def basic_qos(self) -> _Method: ...
    @property
    def basic_consume(self) -> _Method: ...
    @property
    def basic_cancel(self) -> _Method: ...
    @property
    def basic_ack(self) -> _Method: ...
    @property
    def basic_nack(self) -> _Method: ...
    @property
    def basic_reject(self) -> _Method: ...


class RegulatedChannel(Regulated):
    """A pika channel whose consumer holds a goal; see `regulate`. One consumer for each channel.

    Whatever is not named here is the channel's own.
    """

    def __init__(
        self,
        channel: PikaChannel,
        *,
        goal: str | Goal,
        controller: ControllerOption = None,
        max_window: int = 64,
        period_s: float = 1.0,
    ) -> None:
        super().__init__(goal, controller, max_window, period_s)
        self._channel: Any = channel
        self._prefetch = max_window
        self._parked: deque[tuple[Any, Any, bytes]] = deque()
        self._in_flight: dict[int, float] = {}
        self._trip = RoundTrip()
        self._callback: OnMessage | None = None
        self._is_releasing = False
        self._has_timer = False
        self._idle_since_s: float | None = None  # since when a slot is free and there is nothing to hand over
        self._lacking = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def basic_qos(self, *arguments: Any, **named: Any) -> None:
        raise InvalidValue(
            f"a regulated channel sets its own prefetch; leave out basic_qos({', '.join(map(str, arguments))}"
            f"{', '.join(f'{k}={v}' for k, v in named.items())})"
        )

    def basic_consume(
        self, queue: str, on_message_callback: OnMessage, auto_ack: bool = False, **options: Any
    ) -> str:
        """Begin to consume, as pika's; returns the consumer tag."""
        if auto_ack:
            raise InvalidValue(
                f"auto_ack excludes goal {self.goal}: the broker counts a message as done when it has sent it, so "
                "a window means nothing; acknowledge after handling"
            )
        if self._callback is not None:
            raise InvalidValue("this regulated channel has a consumer already; use a channel for each")
        self._callback = on_message_callback
        self._channel.basic_qos(prefetch_count=self._prefetch)
        tag: str = self._channel.basic_consume(queue, self._on_delivery, **options)
        if not self._has_timer:
            self._on_timer()
        return tag

    def consume(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidValue(
            "a regulated channel hands messages to a callback: use basic_consume(queue, on_message) and "
            "start_consuming() in place of the generator consume()"
        )

    def basic_get(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidValue(
            "basic_get takes messages past the window of a regulated channel: "
            "use basic_consume(queue, on_message) and start_consuming(), or basic_get on a channel of its own"
        )

    def basic_cancel(self, *arguments: Any, **named: Any) -> Any:
        answer = self._channel.basic_cancel(*arguments, **named)
        self._return_parked()
        return answer

    def start_consuming(self) -> None:
        self._channel.start_consuming()

    def stop_consuming(self, *arguments: Any, **named: Any) -> None:
        self._channel.stop_consuming(*arguments, **named)
        self._return_parked()

    def _return_parked(self) -> None:
        """The consumer has ended: what was not handed over goes back to the queue, as pika itself does."""
        self._callback = None
        while self._parked:
            method, _, _ = self._parked.popleft()
            if self._channel.is_open:
                self._channel.basic_reject(method.delivery_tag, requeue=True)

    def basic_ack(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        self._settle(delivery_tag, multiple)
        self._channel.basic_ack(delivery_tag, multiple)

    def basic_nack(self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(delivery_tag, multiple)
        self._channel.basic_nack(delivery_tag, multiple, requeue)

    def basic_reject(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        self._settle(delivery_tag, False)
        self._channel.basic_reject(delivery_tag, requeue)

    def _settle(self, tag: int, multiple: bool) -> None:
        if multiple and self._parked and (tag == 0 or tag >= self._parked[0][0].delivery_tag):
            raise InvalidValue(
                f"acknowledging all up to {tag or 'the last'} would include messages that were not handed over "
                "yet; name the last one that was"
            )
        now_s = time.monotonic()
        tags = [sent for sent in self._in_flight if sent <= tag or tag == 0] if multiple else [tag]
        for settled in tags:
            began_s = self._in_flight.pop(settled, None)
            if began_s is not None:
                self._trip.add_settled(1, now_s)
                self._loop.metrics.add_finished(now_s - began_s, None)
        self._step()

    @property
    def _occupied(self) -> int:
        out = len(self._in_flight)
        most = max(0, self._prefetch - out - len(self._parked))
        return out + self._trip.outstanding(time.monotonic(), most)

    def _on_delivery(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        now_s = time.monotonic()
        waiting_s = None if self._idle_since_s is None else now_s - self._idle_since_s
        self._lacking = lacks_messages(waiting_s, self._occupied, max(1, self._whole_window))
        self._trip.add_arrivals(1, now_s, more=bool(self._parked))
        self._parked.append((method, properties, body))
        self._step()
        self._release()

    def _release(self) -> None:
        """Hand over what the window allows; not from within a callback, which this method called."""
        if self._is_releasing or self._callback is None:
            return
        self._is_releasing = True
        try:
            while self._parked and self._occupied < self._whole_window and not self._loop.wait_s:
                method, properties, body = self._parked.popleft()
                self._in_flight[method.delivery_tag] = time.monotonic()
                self._count_handed()
                self._callback(self, method, properties, body)
        finally:
            self._is_releasing = False
        self._idle_since_s = time.monotonic() if self._is_idle else None

    @property
    def _is_idle(self) -> bool:
        """Whether a slot is free and nothing is parked. Messages also arrive while the window is closed."""
        return not self._parked and self._occupied < max(1, self._whole_window)

    def _step(self) -> None:
        """Let the loop sample and decide if it is due; by the clock, so it may be called at any event."""
        self._advance(full=not self._lacking, round_trip_s=self._trip.mean_s or 0.0)

    def _on_timer(self) -> None:
        self._has_timer = self._channel.is_open and self._callback is not None
        if not self._has_timer:
            return
        self._lacking = self._is_idle
        self._step()
        self._release()
        connection = self._channel.connection
        later = getattr(connection, "call_later", None) or connection.ioloop.call_later
        later(DITHER_S / 10 if self._parked else DITHER_S, self._on_timer)


OnMessage: TypeAlias = Callable[[RegulatedChannel, Any, Any, bytes], object]
"""Called as pika calls it: with the channel, the method, the properties and the body."""
