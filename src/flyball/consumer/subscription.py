"""What a user asks of a consumer: where it reads, and which wishes do not go together."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.consumer.policy import Capacity, Goal, Latency, Regulator
from flyball.control.record import MODES
from flyball.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class Place:
    """A queue, or a channel (which may be a pattern) that is read as a member of a group."""

    name: str
    group: str | None = None

    @property
    def is_pattern(self) -> bool:
        return self.group is not None and any(sign in self.name for sign in "*#")

    @property
    def dead_letter(self) -> str:
        """Where dead letters go if nothing else is said; a pattern is no name of a channel."""
        return f"{self.name.replace('*', 'any').replace('#', 'all')}.dead"


def place(queue: str | None, channel: str | None, group: str | None) -> Place:
    """
    >>> place("orders", None, None).dead_letter, place(None, "city.*.load", "workers").dead_letter
    ('orders.dead', 'city.any.load.dead')
    """
    if queue is not None and channel is None and group is None:
        return Place(queue)
    if queue is None and channel is not None and group is not None:
        return Place(channel, group)
    raise InvalidValue(
        "a consumer reads a queue, or a channel as a member of a group; "
        f"got queue={queue!r}, channel={channel!r}, group={group!r}"
    )


def check_wishes(
    goal: Goal | None,
    controller: Regulator,
    *,
    mode: str,
    concurrency: int | None,
    handler_timeout_s: float | None,
    window: int | None,
    max_window: float,
    auto_ack: bool,
    pacing: bool,
) -> None:
    """Refuses what cannot be, with the reason."""
    if auto_ack and goal is not None:
        raise InvalidValue(
            f"automatic acks and the goal {goal} do not go together: the broker counts a message as done when it "
            "has sent it, so a window means nothing; leave out auto_ack, or the goal"
        )
    if goal is None and (controller is not None or pacing):
        raise InvalidValue("a controller and pacing need a goal, such as goal='rate=400'")
    if pacing and isinstance(goal, Capacity | Latency):
        raise InvalidValue(f"pacing needs a goal that is a rate, not {goal}")
    if mode not in MODES:
        raise InvalidValue(f"the mode is one of {', '.join(MODES)}, got {mode!r}")
    if concurrency is not None and concurrency < 1:
        raise InvalidValue(f"concurrency is a number of handlers from 1, got {concurrency}")
    if handler_timeout_s is not None and not handler_timeout_s > 0:
        raise InvalidValue(f"handler_timeout_s is a time above 0 seconds, got {handler_timeout_s}")
    if window is not None and window < 1:
        raise InvalidValue(f"the window is a number of messages from 1, got {window}")
    if not 1 <= max_window <= 65_535:
        raise InvalidValue(f"max_window is from 1 to 65535 messages, got {max_window}")
