"""Which options of a publisher fit together; each refusal says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from flyball.brokers.patterns import check_name
from flyball.errors import InvalidValue

KeepUntil: TypeAlias = Literal["confirm", "receipt"]


def check_room(when_full: str, buffer: int, ageing_s: float) -> None:
    if when_full not in ("wait", "error", "drop"):
        raise InvalidValue(f"when_full is 'wait', 'error' or 'drop', got {when_full!r}")
    if buffer < 1:
        raise InvalidValue(f"the receive buffer holds at least 1 message, got {buffer}")
    if not ageing_s >= 0.0:
        raise InvalidValue(f"ageing_s is a number of seconds from 0, got {ageing_s!r}")


def check_order(ordered: bool, producer: str | None, first_sequence: int, outbox: str | Path) -> None:
    if producer is not None and not ordered:
        raise InvalidValue(f"producer={producer!r} numbers messages in their order: it needs ordered=True")
    if first_sequence < 0 or (first_sequence and (producer is None or outbox != "memory")):
        raise InvalidValue(
            f"first_sequence={first_sequence} is a number from 0 for a memory outbox with a producer: "
            "an outbox file goes on with its own numbers"
        )


def receipts_channel(
    keep_until: str, receipts: str | None, timeout_s: float, channel: str | None, producer: str | None
) -> str | None:
    """Where receipts come; None: they are not waited for."""
    if keep_until not in ("confirm", "receipt"):
        raise InvalidValue(f"keep_until is 'confirm' or 'receipt', got {keep_until!r}")
    if keep_until == "confirm":
        if receipts is not None:
            raise InvalidValue(f"receipts={receipts!r} are waited for only with keep_until='receipt'")
        return None
    if not timeout_s > 0.0:
        raise InvalidValue(f"receipt_timeout_s is a number of seconds above 0, got {timeout_s!r}")
    if producer is not None:
        raise InvalidValue(f"a log drops what producer={producer!r} sends again: keep_until='receipt' cannot work")
    if receipts is None and channel is None:
        raise InvalidValue("receipts need a channel: name it, receipts=…, or the publisher's own, channel=…")
    return check_name(receipts or f"{channel}.receipts")
