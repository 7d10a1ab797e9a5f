"""`regulate`: a goal for a program that keeps its own client, pika or confluent-kafka.

    channel = regulate(connection.channel(), goal="rate=400")        # pika
    channel.basic_consume("orders", on_message)                      # as before; ack as before
    channel.start_consuming()

    consumer = regulate(confluent_consumer, goal="rate=400")         # confluent-kafka
    while message := consumer.poll(1.0):                             # as before
        handle(message)
        consumer.done(message)                                       # new: the message has left the window; a
                                                                     # commit of the message says it, too

What is returned passes everything else on to the client. Nothing runs beside the program: with pika the loop is
called by deliveries, acknowledgements and the connection's own timer, whichever comes first once a step is due (a
BlockingConnection runs no timer while deliveries are pending), with Kafka inside `poll` and `consume`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeAlias, TypeVar, overload

from flyball.brokers.core.round_trip import RoundTrip
from flyball.consumer.external.loop import Regulation
from flyball.consumer.policy import DITHER_S, Goal, Regulator
from flyball.consumer.unfinished import Position, covered, is_forgetful
from flyball.errors import InvalidValue
from flyball.loops.policy import Receipt

log = logging.getLogger("flyball.consumer")

_POLL_S = 0.002  # how long a closed window waits before it looks again
_LACKING_S = 0.005  # a delivery that was waited for longer than this, with room in the window, was lacking

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


class KafkaMessage(Protocol):
    """What `regulate` uses of a message of confluent-kafka."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def error(self) -> Any: ...


M = TypeVar("M", bound=KafkaMessage)


class KafkaConsumer(Protocol[M]):
    """What `regulate` uses of a confluent-kafka Consumer."""

    def poll(self, timeout: float = ..., /) -> M | None: ...
    def consume(self, num_messages: int = ..., timeout: float = ..., /) -> list[M]: ...
    @property
    def assignment(self) -> _Method: ...
    @property
    def commit(self) -> _Method: ...
    @property
    def store_offsets(self) -> _Method: ...


@overload
def regulate(
    client: PikaChannel,
    *,
    goal: str | Goal,
    controller: Regulator = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedChannel: ...
@overload
def regulate(
    client: KafkaConsumer[M],
    *,
    goal: str | Goal,
    controller: Regulator = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedConsumer[M]: ...
def regulate(
    client: Any,
    *,
    goal: str | Goal,
    controller: Regulator = None,
    max_window: int = 64,
    period_s: float = 1.0,
) -> RegulatedChannel | RegulatedConsumer[Any]:
    """The same client with a window that holds `goal`.

    A pika channel must be open and must not consume yet; the wrapper sets its prefetch to `max_window`, keeps what
    exceeds the window unacknowledged and untouched, and hands it to the callback as the window allows. A
    confluent-kafka consumer must not commit by itself.
    """
    kind = type(client)
    if hasattr(client, "basic_consume") and hasattr(client, "basic_ack"):
        return RegulatedChannel(client, goal=goal, controller=controller, max_window=max_window, period_s=period_s)
    if hasattr(client, "consume") and hasattr(client, "poll") and hasattr(client, "assignment"):
        return RegulatedConsumer(
            client, goal=goal, controller=controller, max_window=max_window, period_s=period_s
        )
    raise InvalidValue(
        f"regulate takes a pika channel or a confluent-kafka Consumer, got {kind.__module__}.{kind.__qualname__}"
    )


@dataclass(frozen=True, slots=True)
class RegulatedStats:
    """Counts since the start, and what the last step measured (None: nothing yet).

    `handed` messages were given to the program, `done` of them are done. `window` is how many may be in flight;
    where that is less than one, messages are handed over at `pace_per_s` instead.
    """

    handed: int
    done: int
    in_flight: int
    window: float
    pace_per_s: float | None
    rate_per_s: float | None
    residence_s: float | None


class _Regulated:
    """What both kinds of clients have in common: the goal, and what its loop does."""

    def __init__(self, loop: Regulation) -> None:
        self._loop = loop

    @property
    def goal(self) -> Goal:
        """What is held. It may be changed while the program runs, to another value of the same kind."""
        return self._loop.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        self._loop.goal = goal

    @property
    def window(self) -> float:
        """How many messages may be in flight. A fraction is the mean of the two whole numbers beside it."""
        return self._loop.wanted

    @property
    def in_flight(self) -> int:
        """Messages that the program has and that are not done."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """Why the goal is not held at the moment, if so; else empty."""
        return self._loop.status

    @property
    def stats(self) -> RegulatedStats:
        loop, seen = self._loop, self._loop.seen
        return RegulatedStats(
            loop.sensing.handed,
            loop.sensing.done,
            self.in_flight,
            loop.wanted,
            loop.pace_per_s,
            None if seen is None else seen.rate_per_s,
            None if seen is None else seen.residence_s,
        )

    def steps(self) -> list[Receipt]:
        """The newest steps of the loop: what was measured, what was decided, and why."""
        return list(self._loop.receipts)


class RegulatedChannel(_Regulated):
    """A pika channel whose consumer holds a goal; see `regulate`. One consumer for each channel.

    Whatever is not named here is the channel's own.
    """

    def __init__(
        self,
        channel: PikaChannel,
        *,
        goal: str | Goal,
        controller: Regulator = None,
        max_window: int = 64,
        period_s: float = 1.0,
    ) -> None:
        super().__init__(Regulation(goal, controller, max_window=max_window, period_s=period_s))
        self._channel: Any = channel
        self._prefetch = max_window
        self._parked: deque[tuple[Any, Any, bytes]] = deque()
        self._out: dict[int, float] = {}
        self._trip = RoundTrip()
        self._callback: OnMessage | None = None
        self._releasing = False
        self._has_timer = False
        self._idle_since_s: float | None = None  # since when there is room and nothing to hand over
        self._lacking = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    @property
    def in_flight(self) -> int:
        return len(self._out)

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
                f"automatic acks and the goal {self.goal} do not go together: the broker counts a "
                "message as done when it has sent it, so a window means nothing; acknowledge after handling"
            )
        if self._callback is not None:
            raise InvalidValue("this regulated channel has a consumer already; use a channel for each")
        self._callback = on_message_callback
        self._channel.basic_qos(prefetch_count=self._prefetch)
        tag: str = self._channel.basic_consume(queue, self._delivered, **options)
        if not self._has_timer:
            self._again()
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
        self._give_back()
        return answer

    def start_consuming(self) -> None:
        self._channel.start_consuming()

    def stop_consuming(self, *arguments: Any, **named: Any) -> None:
        self._channel.stop_consuming(*arguments, **named)
        self._give_back()

    def _give_back(self) -> None:
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
        tags = [one for one in self._out if one <= tag or tag == 0] if multiple else [tag]
        for one in tags:
            began_s = self._out.pop(one, None)
            if began_s is not None:
                self._trip.settled(1, now_s)
                self._loop.sensing.finished(now_s - began_s, None)
        self._step()

    @property
    def _occupied(self) -> int:
        out = len(self._out)
        most = max(0, self._prefetch - out - len(self._parked))
        return out + self._trip.open(time.monotonic(), most)

    def _delivered(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        now_s, idle_since_s = time.monotonic(), self._idle_since_s
        self._lacking = idle_since_s is not None and now_s - idle_since_s > _LACKING_S
        self._trip.arrived(1, now_s, more=bool(self._parked))
        self._parked.append((method, properties, body))
        self._step()
        self._release()

    def _release(self) -> None:
        """Hand over what the window allows; not from within a callback, for that is under way already."""
        if self._releasing or self._callback is None:
            return
        self._releasing = True
        try:
            while self._parked and self._occupied < self._loop.window and not self._loop.wait_s:
                method, properties, body = self._parked.popleft()
                self._out[method.delivery_tag] = time.monotonic()
                self._loop.handed()
                self._callback(self, method, properties, body)
        finally:
            self._releasing = False
        self._idle_since_s = time.monotonic() if self._is_idle else None

    @property
    def _is_idle(self) -> bool:
        """There is room and nothing to hand over. Messages also arrive while the window is closed."""
        return not self._parked and self._occupied < max(1, self._loop.window)

    def _step(self) -> None:
        """Let the loop sample and decide if it is due; by the clock, so it may be called at any event."""
        if self._loop.is_due:
            self._loop.tick(full=not self._lacking, round_trip_s=self._trip.mean_s or 0.0)

    def _again(self) -> None:
        self._has_timer = self._channel.is_open and self._callback is not None
        if not self._has_timer:
            return
        self._lacking = self._is_idle
        self._step()
        self._release()
        connection = self._channel.connection
        later = getattr(connection, "call_later", None) or connection.ioloop.call_later
        later(DITHER_S / 10 if self._parked else DITHER_S, self._again)


OnMessage: TypeAlias = Callable[[RegulatedChannel, Any, Any, bytes], object]
"""Called as pika calls it: with the channel, the method, the properties and the body."""


class RegulatedConsumer(_Regulated, Generic[M]):
    """A confluent-kafka consumer that holds a goal; see `regulate`.

    Whatever is not named here is the consumer's own.
    """

    def __init__(
        self,
        consumer: KafkaConsumer[M],
        *,
        goal: str | Goal,
        controller: Regulator = None,
        max_window: int = 64,
        period_s: float = 1.0,
    ) -> None:
        super().__init__(Regulation(goal, controller, max_window=max_window, period_s=period_s))
        self._consumer = consumer
        self._out: dict[Position, float] = {}
        self._lacking = False
        self._full_since_s: float | None = None  # since when the window is full and nothing was done
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    @property
    def in_flight(self) -> int:
        return len(self._out)

    def poll(self, timeout: float = -1.0) -> M | None:
        """The next message, or None after `timeout` seconds (-1: wait for ever)."""
        got = self.consume(1, timeout)
        return got[0] if got else None

    def consume(self, num_messages: int = 1, timeout: float = -1.0) -> list[M]:
        """Up to `num_messages`, as the window allows."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            self._loop.tick(full=not self._lacking)
            room = min(num_messages, self._loop.window - len(self._out))
            left_s = DITHER_S if deadline is None else min(DITHER_S, max(0.0, deadline - time.monotonic()))
            if room > 0 and not self._loop.wait_s:
                got = self._consumer.consume(room, left_s)
                self._lacking = len(got) < room
                if got:
                    self._hand(got)
                    return list(got)
            else:
                self._lacking = False
                if room <= 0:
                    self._watch()
                time.sleep(min(_POLL_S, left_s))
            if deadline is not None and time.monotonic() >= deadline:
                return []

    def _hand(self, messages: list[M]) -> None:
        now_s = time.monotonic()
        for message in messages:
            if message.error() is None:
                self._out[message.topic(), message.partition(), message.offset()] = now_s
                self._loop.handed()

    @property
    def status(self) -> str:
        return self._forgets or super().status

    @property
    def _forgets(self) -> str:
        """A sentence where the program seems to forget to call `done`; else empty."""
        full_s = 0.0 if self._full_since_s is None else time.monotonic() - self._full_since_s
        if not is_forgetful(full_s, self._loop.residence_s):
            return ""
        return (
            f"the window is full ({len(self._out)} in flight) and no message was done for {full_s:.0f} s: call "
            "consumer.done(message) when a message was handled, or commit it; no other message comes until then"
        )

    def _watch(self) -> None:
        """The window is full: warn, once, a program that never frees it."""
        if self._full_since_s is None:
            self._full_since_s = time.monotonic()
        elif not self._has_warned and (words := self._forgets):
            self._has_warned = True
            log.warning("%s", words)

    def done(self, message: KafkaMessage) -> None:
        """This message was handled: its slot in the window is free. Commit as before."""
        self._finish([(message.topic(), message.partition(), message.offset())])

    def commit(
        self,
        message: KafkaMessage | None = None,
        offsets: Sequence[Any] | None = None,
        asynchronous: bool = True,
    ) -> Any:
        """Commit as before. What `message` or `offsets` cover, or the answer of a synchronous commit, is done."""
        self._finish_covered(message, offsets)
        answer = self._consumer.commit(**_named(message, offsets), asynchronous=asynchronous)
        if message is None and offsets is None:
            self._finish_covered(None, answer)
        return answer

    def store_offsets(self, message: KafkaMessage | None = None, offsets: Sequence[Any] | None = None) -> None:
        """Store offsets for the next commit, as before. What they cover is done."""
        self._finish_covered(message, offsets)
        self._consumer.store_offsets(**_named(message, offsets))

    def _finish_covered(self, message: KafkaMessage | None, offsets: Sequence[Any] | None) -> None:
        if message is not None and (offset := message.offset()) is not None:
            self._finish(covered(self._out, message.topic(), message.partition(), offset + 1))
        for each in offsets or ():
            self._finish(covered(self._out, each.topic, each.partition, each.offset))

    def _finish(self, positions: list[Position]) -> None:
        now_s = time.monotonic()
        for position in positions:
            began_s = self._out.pop(position, None)
            if began_s is not None:
                self._full_since_s = None
                self._loop.sensing.finished(now_s - began_s, None)


def _named(message: KafkaMessage | None, offsets: Sequence[Any] | None) -> dict[str, Any]:
    """The arguments that were given: the client takes one of them, and no None."""
    named: dict[str, Any] = {"message": message, "offsets": None if offsets is None else list(offsets)}
    return {name: value for name, value in named.items() if value is not None}
