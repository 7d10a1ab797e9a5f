"""What a program publishes and receives: the message, the same for every broker and for the store."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

HeaderValue: TypeAlias = str | int | float | bool | bytes

_NO_HEADERS: Mapping[str, HeaderValue] = MappingProxyType({})

# Seeded by the system once, not asked for every id: that would cost more than all else a message needs. Ids are
# no secrets, they only have to differ; so a forked process begins a sequence of its own.
_ids = random.Random()
os.register_at_fork(after_in_child=_ids.seed)


def new_id() -> str:
    """A message id: 32 hexadecimal digits, unique without coordination."""
    return f"{_ids.getrandbits(128):032x}"


@dataclass(slots=True)
class Message:
    """What a publisher sends and a consumer receives.

    `id` stays the same however often the message is sent or delivered; it is what repeats are recognised by.
    `key` chooses the partition of a log and is any bytes. `event_time_s` is when the thing happened, in
    seconds since 1970, which may be long before it was sent.

    Not frozen, as that triples the time to build one, but not to be changed once it was sent or received: others
    may hold the same object. `dataclasses.replace` makes a changed one.
    """

    body: bytes
    id: str = field(default_factory=new_id)
    key: bytes | None = None
    headers: Mapping[str, HeaderValue] = field(default_factory=lambda: _NO_HEADERS)
    event_time_s: float | None = None
    content_type: str | None = None
