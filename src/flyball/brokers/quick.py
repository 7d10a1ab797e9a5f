"""Builds messages, deliveries and results three times faster, for adapters that bring 100,000 and more a second.

A frozen dataclass assigns each field through `object.__setattr__`, about 1.1 µs for a message, more than the
Kafka client takes to hand one over. A plain class with the same slots is filled in a quarter of that, and since
its layout is the same its instances may then become the frozen class. What comes out cannot be told from one
that was built the usual way:

>>> quick_message(b"body", "id", None, {}, None, None) == Message(b"body", "id")
True
>>> quick_delivery(Message(b"", "id"), "events", 3, 0, 7) == Delivery(
...     Message(b"", "id"), "events", 3, attempt=1, partition=0, offset=7
... )
True
>>> type(quick_result("id", 0, 7)), quick_result("id", 0, 7) == SendResult("id", partition=0, offset=7)
(<class 'flyball.brokers.port.SendResult'>, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flyball.brokers.port import Delivery, HeaderValue, Message, SendResult

_MESSAGE: Any = Message
_DELIVERY: Any = Delivery
_RESULT: Any = SendResult


class _Message:
    __slots__ = ("body", "content_type", "event_time_s", "headers", "id", "key")

    def __init__(
        self,
        body: bytes,
        id: str,
        key: bytes | None,
        headers: Mapping[str, HeaderValue],
        event_time_s: float | None,
        content_type: str | None,
    ) -> None:
        self.body = body
        self.id = id
        self.key = key
        self.headers = headers
        self.event_time_s = event_time_s
        self.content_type = content_type
        self.__class__ = _MESSAGE


class _Delivery:
    __slots__ = ("attempt", "channel", "message", "offset", "partition", "redelivered", "tag")

    def __init__(self, message: Message, channel: str, tag: int, partition: int, offset: int) -> None:
        self.message = message
        self.channel = channel
        self.tag = tag
        self.redelivered = False
        self.attempt = 1
        self.partition = partition
        self.offset = offset
        self.__class__ = _DELIVERY


class _SendResult:
    __slots__ = ("duplicate", "error", "id", "offset", "partition")

    def __init__(self, id: str, partition: int | None, offset: int | None) -> None:
        self.id = id
        self.error = None
        self.duplicate = False
        self.partition = partition
        self.offset = offset
        self.__class__ = _RESULT


if TYPE_CHECKING:

    def quick_message(
        body: bytes,
        id: str,
        key: bytes | None,
        headers: Mapping[str, HeaderValue],
        event_time_s: float | None,
        content_type: str | None,
    ) -> Message: ...

    def quick_delivery(message: Message, channel: str, tag: int, partition: int, offset: int) -> Delivery:
        """A first delivery of a log record."""

    def quick_result(id: str, partition: int | None, offset: int | None) -> SendResult:
        """The result of a message that was stored."""
else:
    quick_message, quick_delivery, quick_result = _Message, _Delivery, _SendResult
