"""Checks and choices that adapters share: partitions, declarations, common errors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from flyball.brokers.port import Blocked, Kind, Message, TooLarge, Unconfirmed, UnfitMessage, Unsupported
from flyball.errors import InvalidValue
from flyball.message import check_message


def partition_of(key: bytes | None, partitions: int, keyless: int) -> int:
    """The partition of a key. The hash is the same in every process (crc32), so a key never changes its partition.

    >>> partition_of(b"lyon", 4, keyless=0), partition_of(None, 4, keyless=2)
    (3, 2)
    """
    return keyless % partitions if key is None else zlib.crc32(key) % partitions


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A channel as `Broker.declare` asks for it."""

    name: str
    kind: Kind = "queue"
    partitions: int = 1
    max_bytes: int | None = None
    retention_s: float | None = None
    durable: bool = True

    def check(self) -> None:
        """Refuse what no broker can make."""
        if self.kind not in ("queue", "log"):
            raise InvalidValue(f"kind of {self.name!r} must be 'queue' or 'log', got {self.kind!r}")
        if self.partitions < 1 or (self.kind == "queue" and self.partitions != 1):
            allowed = "1 for a queue" if self.kind == "queue" else ">= 1"
            raise InvalidValue(f"partitions of {self.name!r} must be {allowed}, got {self.partitions}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidValue(f"max_bytes of {self.name!r} must be >= 1, got {self.max_bytes}")
        if self.retention_s is not None and self.retention_s <= 0:
            raise InvalidValue(f"retention_s of {self.name!r} must be > 0, got {self.retention_s:g}")
        if self.retention_s is not None and self.kind == "queue":
            raise Unsupported(
                f"{self.name!r} is a queue, which keeps messages until they are acknowledged: "
                "retention_s is for logs"
            )

    def check_fits(self, kind: Kind, partitions: int) -> None:
        """Refuse a channel that exists as another kind, or with fewer partitions than asked for."""
        if self.kind != kind or self.partitions > partitions:
            raise InvalidValue(
                f"{self.name!r} exists as a {kind} of {partitions} partition(s), not a {self.kind} of "
                f"{self.partitions}: delete it first or use another name"
            )


def check_batch(messages: Sequence[Message]) -> tuple[list[Message], dict[int, UnfitMessage]]:
    """The messages as all brokers can carry them, and the errors of those that none can carry, by index.

    In the place of an unfit message there is an empty one, which must not be sent.

    >>> fit, unfit = check_batch([Message(b"a"), Message(5), Message(b"c")])
    >>> [message.body for message in fit], unfit
    ([b'a', b'', b'c'], {1: UnfitMessage('the body of a message must be bytes, got int 5')})
    """
    try:
        return list(map(check_message, messages)), {}
    except InvalidValue:
        pass
    fit: list[Message] = []
    unfit: dict[int, UnfitMessage] = {}
    for index, message in enumerate(messages):
        try:
            fit.append(check_message(message))
        except InvalidValue as error:
            unfit[index] = UnfitMessage(str(error))
            fit.append(Message(b"", getattr(message, "id", "")))
    return fit, unfit


def too_large(message: Message, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"message {message.id} has {len(message.body)} bytes, this broker accepts {limit_bytes}: "
        "send less or raise the URL's option max_body_bytes"
    )


def queue_full(channel: str, waited_s: float) -> Blocked:
    return Blocked(f"{channel!r} is full and did not drain within {waited_s:g} s: send again when it has")


def after_gap(producer: str | None) -> Unconfirmed:
    return Unconfirmed(
        f"a message of producer {producer!r} with a lower sequence was not stored, so this one was not either: "
        "send them again in order"
    )
