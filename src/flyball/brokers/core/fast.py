"""Builds messages, deliveries and results three times faster, for adapters that bring 100,000 and more a second.

One by one, as a client hands them over (`quick_message`, drafts), or many at once where fields come as columns, as
they lie in a stored batch (`make_many`).

A frozen dataclass assigns each field through `object.__setattr__`, about 1.1 µs for a message, more than the
Kafka client takes to hand one over. A plain class with the same slots is filled in a quarter of that, and since
its layout is the same its instances may then become the frozen class. What comes out cannot be told from one
that was built the usual way:

>>> quick_message(b"body", "id", None, {}, None, None) == Message(b"body", "id")
True
>>> draft = DeliveryDraft()
>>> draft.message, draft.channel, draft.tag, draft.redelivered = Message(b"", "id"), "events", 3, False
>>> draft.attempt, draft.partition, draft.offset = 1, 0, 7
>>> draft.__class__ = DELIVERY
>>> draft == Delivery(Message(b"", "id"), "events", 3, attempt=1, partition=0, offset=7)
True
>>> type(quick_result("id", 0, 7)), quick_result("id", 0, 7) == SendResult("id", partition=0, offset=7)
(<class 'flyball.brokers.port.SendResult'>, True)
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from flyball.brokers.port import Delivery, HeaderValue, Message, SendResult

Made = TypeVar("Made")

# As Any: assigning `__class__` is beyond what types can say.
MESSAGE: Any = Message
DELIVERY: Any = Delivery
_RESULT: Any = SendResult


class MessageDraft:
    """Filled in field by field, then `draft.__class__ = MESSAGE`: the fastest of all, for the hottest loop."""

    __slots__ = ("body", "content_type", "event_time_s", "headers", "id", "key")

    body: bytes
    id: str
    key: bytes | None
    headers: Mapping[str, HeaderValue]
    event_time_s: float | None
    content_type: str | None


class DeliveryDraft:
    """The same for a delivery."""

    __slots__ = ("attempt", "channel", "message", "offset", "partition", "redelivered", "tag")

    message: Any
    channel: str
    tag: int
    redelivered: bool
    attempt: int | None
    partition: int | None
    offset: int | None


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
        self.__class__ = MESSAGE


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

    def quick_result(id: str, partition: int | None, offset: int | None) -> SendResult:
        """The result of a message that was stored."""
else:
    quick_message, quick_result = _Message, _SendResult


def make_many(kind: type[Made], count: int, *columns: Iterable[Any]) -> list[Made]:
    """`count` objects of a slotted dataclass, one iterable a field, in the order of the fields.

    One field of all objects is set in a row, in C: twice as fast as one object after the other.

    >>> from flyball.brokers.port import Record
    >>> bodies = [Message(b"a"), Message(b"b")]
    >>> make_many(Record, 2, repeat(0), range(7, 9), bodies, repeat(None)) == [
    ...     Record(0, 7, bodies[0]), Record(0, 8, bodies[1])]
    True
    """
    made: list[Made] = list(map(object.__new__, repeat(kind, count)))
    for put, column in zip(_setters(kind), columns, strict=True):
        deque(map(put, made, column), maxlen=0)  # runs the map and keeps nothing
    return made


_known: dict[type[Any], tuple[Callable[[Any, Any], None], ...]] = {}


def _setters(kind: type[Any]) -> tuple[Callable[[Any, Any], None], ...]:
    if kind not in _known:
        _known[kind] = tuple(kind.__dict__[field.name].__set__ for field in dataclasses.fields(kind))
    return _known[kind]
