"""A confluent-kafka consumer that holds a goal: the window bounds what it is asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from flyball.consumer.external.regulated import Regulated
from flyball.consumer.policy.controller import DITHER_S, ControllerOption
from flyball.consumer.policy.goals import Goal
from flyball.consumer.policy.unfinished import Position, lacks_done_calls, positions_before

log = logging.getLogger("flyball.consumer")

_POLL_S = 0.002  # how long a closed window waits before it looks again

_Method: TypeAlias = Callable[..., Any]


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


class RegulatedConsumer(Regulated, Generic[M]):
    """A confluent-kafka consumer that holds a goal; see `regulate`.

    Whatever is not named here is the consumer's own.
    """

    def __init__(
        self,
        consumer: KafkaConsumer[M],
        *,
        goal: str | Goal,
        controller: ControllerOption = None,
        max_window: int = 64,
        period_s: float = 1.0,
    ) -> None:
        super().__init__(goal, controller, max_window, period_s)
        self._consumer = consumer
        self._in_flight: dict[Position, float] = {}
        self._lacking = False
        self._full_since_s: float | None = None  # since when the window is full and nothing was done
        self._has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def poll(self, timeout: float = -1.0) -> M | None:
        """The next message, or None after `timeout` seconds (-1: wait for ever)."""
        got = self.consume(1, timeout)
        return got[0] if got else None

    def consume(self, num_messages: int = 1, timeout: float = -1.0) -> list[M]:
        """Up to `num_messages`, as the window allows."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            self._advance(full=not self._lacking)
            free = min(num_messages, self._whole_window - len(self._in_flight))
            left_s = DITHER_S if deadline is None else min(DITHER_S, max(0.0, deadline - time.monotonic()))
            if free > 0 and not self._loop.wait_s:
                got = self._consumer.consume(free, left_s)
                self._lacking = len(got) < free
                if got:
                    self._count(got)
                    return list(got)
            else:
                self._lacking = False
                if free <= 0:
                    self._check_progress()
                time.sleep(min(_POLL_S, left_s))
            if deadline is not None and time.monotonic() >= deadline:
                return []

    def _count(self, messages: list[M]) -> None:
        now_s = time.monotonic()
        for message in messages:
            if message.error() is None:
                self._in_flight[message.topic(), message.partition(), message.offset()] = now_s
                self._count_handed()

    @property
    def status(self) -> str:
        return self._missing_done or super().status

    @property
    def _missing_done(self) -> str:
        """A warning where the program seems not to call `done`; else empty."""
        full_s = 0.0 if self._full_since_s is None else time.monotonic() - self._full_since_s
        if not lacks_done_calls(full_s, self._loop.residence_s):
            return ""
        return (
            f"the window is full ({len(self._in_flight)} in flight) and no message was done for {full_s:.0f} s: "
            "call consumer.done(message) when a message was handled, or commit it; no more messages come before"
        )

    def _check_progress(self) -> None:
        """Warn once if the window is full and the program never frees it."""
        if self._full_since_s is None:
            self._full_since_s = time.monotonic()
        elif not self._has_warned and (warning := self._missing_done):
            self._has_warned = True
            log.warning("%s", warning)

    def done(self, message: KafkaMessage) -> None:
        """Report that a message was handled: its slot in the window is free. Commit as before."""
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
            self._finish(positions_before(self._in_flight, message.topic(), message.partition(), offset + 1))
        for each in offsets or ():
            self._finish(positions_before(self._in_flight, each.topic, each.partition, each.offset))

    def _finish(self, positions: list[Position]) -> None:
        now_s = time.monotonic()
        for position in positions:
            began_s = self._in_flight.pop(position, None)
            if began_s is not None:
                self._full_since_s = None
                self._loop.metrics.add_finished(now_s - began_s, None)


def _named(message: KafkaMessage | None, offsets: Sequence[Any] | None) -> dict[str, Any]:
    """The arguments that were given: the client takes one of them, and no None."""
    named: dict[str, Any] = {"message": message, "offsets": None if offsets is None else list(offsets)}
    return {name: value for name, value in named.items() if value is not None}
