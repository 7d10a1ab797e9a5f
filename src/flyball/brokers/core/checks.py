"""What adapters that keep the messages themselves decide in the same way: partitions, declarations, refusals."""

from __future__ import annotations

import zlib

from flyball.brokers.core.names import check_name
from flyball.brokers.port import Blocked, Kind, Message, TooLarge, Unsupported
from flyball.errors import InvalidValue


def partition_of(key: bytes | None, partitions: int, keyless: int) -> int:
    """Messages of one key stay together for ever, so the hash must not differ between processes (crc32 does not).

    >>> partition_of(b"lyon", 4, keyless=0), partition_of(None, 4, keyless=2)
    (3, 2)
    """
    return keyless % partitions if key is None else zlib.crc32(key) % partitions


def check_declaration(
    channel: str, kind: Kind, partitions: int, max_bytes: int | None, retention_s: float | None
) -> None:
    check_name(channel)
    if kind not in ("queue", "log"):
        raise InvalidValue(f"a channel is a 'queue' or a 'log', not {kind!r}")
    if partitions < 1 or (kind == "queue" and partitions != 1):
        raise InvalidValue(f"{channel!r} cannot have {partitions} partitions: a log has 1 or more, a queue has 1")
    if max_bytes is not None and max_bytes < 1:
        raise InvalidValue(f"max_bytes of {channel!r} has to be 1 or more, not {max_bytes}")
    if retention_s is not None and retention_s <= 0:
        raise InvalidValue(f"retention_s of {channel!r} has to be above 0, not {retention_s:g}")
    if retention_s is not None and kind == "queue":
        raise Unsupported(
            f"{channel!r} is a queue, which keeps messages until they are acknowledged: retention_s is for logs"
        )


def check_same(channel: str, known: tuple[Kind, int], wanted: tuple[Kind, int]) -> None:
    if known != wanted:
        raise InvalidValue(
            f"{channel!r} exists as a {known[0]} of {known[1]} partition(s), not a {wanted[0]} of {wanted[1]}: "
            "delete it first or use another name"
        )


def too_large(message: Message, limit_bytes: int) -> TooLarge:
    return TooLarge(
        f"message {message.id} has {len(message.body)} bytes, this broker takes {limit_bytes}: "
        "send less or raise the URL's option max_body_bytes"
    )


def full(channel: str, waited_s: float) -> Blocked:
    return Blocked(f"{channel!r} is full and did not drain within {waited_s:g} s: send again when it has")
