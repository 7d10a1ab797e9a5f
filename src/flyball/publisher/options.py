"""Groups of a publisher's options, and checks that options fit together; each refusal says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flyball.brokers.core.names import check_name
from flyball.errors import InvalidValue
from flyball.store.sqlite import Durability


@dataclass(frozen=True, slots=True)
class OutboxConfig:
    """Where accepted messages wait for their confirms.

    `path` is a SQLite file, which may be the application's own database; None keeps them in memory, where they are
    lost when the process ends. `max_bytes` (default: 4 GiB in a file, 64 MiB in memory) bounds what may wait.
    `durability`: accepted messages survive power loss, or only the end of the "process", which is faster.
    """

    path: str | Path | None
    max_bytes: int | None = None
    durability: Durability = "power"

    def __post_init__(self) -> None:
        if self.path in ("", ":memory:", "memory"):
            raise InvalidValue(
                f"the outbox must be the path of a file, or None for memory, got {self.path!r}"
                + (" (a file of that name is './memory')" if self.path == "memory" else "")
            )
        if self.max_bytes is not None and self.max_bytes < 1:
            raise InvalidValue(f"max_bytes must be an integer >= 1, got {self.max_bytes!r}")


@dataclass(frozen=True, slots=True)
class ReceiptConfig:
    """Messages stay in the outbox until a consumer's delivery receipt comes.

    Receipts come on `channel` (default: the publisher's channel with ".receipts"; one for each outbox). A message
    without one `timeout_s` after its confirm is published again, with the same id.
    """

    channel: str | None = None
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.timeout_s > 0.0:
            raise InvalidValue(f"the timeout_s of receipts must be > 0, got {self.timeout_s!r}")


@dataclass(frozen=True, slots=True)
class OrderingConfig:
    """Messages of a channel arrive in the order in which they were accepted, also after failures.

    With a `producer`, messages carry their outbox number, and a log that drops repeats (`capabilities.dedup`)
    holds each exactly once. `first_sequence` is the first number of an outbox in memory.
    """

    producer: str | None = None
    first_sequence: int = 0

    def __post_init__(self) -> None:
        if self.first_sequence < 0:
            raise InvalidValue(f"first_sequence must be an integer >= 0, got {self.first_sequence!r}")
        if self.first_sequence and self.producer is None:
            raise InvalidValue(f"first_sequence={self.first_sequence} numbers messages of a producer: name it")


def outbox_config(outbox: str | Path | OutboxConfig | None) -> OutboxConfig:
    """A plain path, or None for memory, is an outbox with the usual options."""
    return outbox if isinstance(outbox, OutboxConfig) else OutboxConfig(outbox)


def check_limits(when_full: str, buffer: int, urgency_step_s: float) -> None:
    if when_full not in ("wait", "error", "drop"):
        raise InvalidValue(f"when_full must be 'wait', 'error' or 'drop', got {when_full!r}")
    if buffer < 1:
        raise InvalidValue(f"buffer must be an integer >= 1 (messages), got {buffer!r}")
    if not urgency_step_s >= 0.0:
        raise InvalidValue(f"urgency_step_s must be >= 0, got {urgency_step_s!r}")


def check_ordering(ordering: OrderingConfig | None, outbox: OutboxConfig) -> None:
    if ordering is not None and ordering.first_sequence and outbox.path is not None:
        raise InvalidValue(
            f"first_sequence={ordering.first_sequence} is for an outbox in memory: an outbox file continues with "
            "its own numbers"
        )


def receipts_channel(
    receipts: ReceiptConfig | None, channel: str | None, ordering: OrderingConfig | None
) -> str | None:
    """Where receipts come; None: they are not waited for."""
    if receipts is None:
        return None
    if ordering is not None and ordering.producer is not None:
        raise InvalidValue(
            f"a log drops what producer={ordering.producer!r} sends again: receipts need a publisher without one"
        )
    if receipts.channel is None and channel is None:
        raise InvalidValue("receipts need a channel: ReceiptConfig(channel=…), or the publisher's own, channel=…")
    return check_name(receipts.channel or f"{channel}.receipts")
