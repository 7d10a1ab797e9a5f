"""What a consumer reads, and which options exclude each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flyball.consumer.policy.controller import ControllerOption
from flyball.consumer.policy.goals import Capacity, Goal, Latency
from flyball.control.record import MODES
from flyball.errors import InvalidValue
from flyball.groups.config import GroupConfig
from flyball.message import check_name


@dataclass(frozen=True, slots=True)
class Subscription:
    """A queue, a channel (or pattern) that is read as a member of a group, or the queues of `member`."""

    name: str
    group: str | None = None
    member: GroupConfig | None = None

    @property
    def is_pattern(self) -> bool:
        return self.group is not None and any(sign in self.name for sign in "*#")

    @property
    def has_many_channels(self) -> bool:
        """Whether messages of several channels come, whose ids may be equal."""
        return self.is_pattern or self.member is not None

    def reads(self, channel: str) -> bool:
        """Whether this very channel is read."""
        if self.member is None:
            return channel == self.name
        return any(re.fullmatch(re.escape(topic) + r"(\.\d+)?", channel) for topic in self.member.topics)

    @property
    def dead_letter_channel(self) -> str:
        """Where dead letters go by default; the signs of a pattern cannot be part of a channel's name."""
        return f"{self.name.replace('*', 'any').replace('#', 'all')}.dead"


def make_subscription(queue: str | None, channel: str | None, group: str | GroupConfig | None) -> Subscription:
    """Make the subscription to a queue, to a channel with a group, or to the queues of a member of a group.

    >>> make_subscription("orders", None, None).dead_letter_channel
    'orders.dead'
    >>> make_subscription(None, "city.*.load", "workers").dead_letter_channel
    'city.any.load.dead'
    """
    if queue is not None and channel is None and group is None:
        return Subscription(queue)
    if queue is None and channel is None and isinstance(group, GroupConfig):
        return Subscription(group.name, group.name, group)
    if queue is None and channel is not None and isinstance(group, str):
        return Subscription(channel, group)
    shown = f"GroupConfig(name={group.name!r}, …)" if isinstance(group, GroupConfig) else repr(group)
    raise InvalidValue(
        "either queue, or channel and group must be set, or group alone as a GroupConfig, "
        f"got queue={queue!r}, channel={channel!r}, group={shown}"
    )


def check_dead_letter(subscription: Subscription, dead_letter: object) -> None:
    """Raise `InvalidValue` for a channel that cannot take the dead letters of this subscription."""
    if not isinstance(dead_letter, str):
        raise InvalidValue(f"dead_letter must be the name of a channel, got {dead_letter!r}")
    check_name(dead_letter)
    if subscription.reads(dead_letter):
        raise InvalidValue(
            f"dead_letter must be another channel than {dead_letter!r}, which is consumed: dead letters would "
            "come back"
        )


def check_options(
    goal: Goal | None,
    controller: ControllerOption,
    *,
    mode: str,
    concurrency: int | None,
    handler_timeout_s: float | None,
    window: int | None,
    max_window: float,
    auto_ack: bool,
    pacing: bool,
) -> None:
    """Raise `InvalidValue` for an option that is out of range or excluded by another one."""
    if auto_ack and goal is not None:
        raise InvalidValue(
            f"auto_ack excludes goal {goal}: the broker counts a message as done when it has sent it, so a window "
            "means nothing; leave out auto_ack, or the goal"
        )
    if goal is None and (controller is not None or pacing):
        raise InvalidValue("controller and pacing need a goal, such as goal='rate=400'")
    if pacing and isinstance(goal, Capacity | Latency):
        raise InvalidValue(f"pacing needs a goal that is a rate, got {goal}")
    if mode not in MODES:
        raise InvalidValue(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if concurrency is not None and concurrency < 1:
        raise InvalidValue(f"concurrency must be >= 1, got {concurrency}")
    if handler_timeout_s is not None and not handler_timeout_s > 0:
        raise InvalidValue(f"handler_timeout_s must be > 0, got {handler_timeout_s}")
    if window is not None and window < 1:
        raise InvalidValue(f"window must be >= 1, got {window}")
    if not 1 <= max_window <= 65_535:
        raise InvalidValue(f"max_window must be from 1 to 65535, got {max_window}")
