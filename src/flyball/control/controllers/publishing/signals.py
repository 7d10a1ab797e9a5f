"""What the controllers of a publisher measure and command: the signals of `static`, `batch-aimd` and `auto`.

A publisher takes messages from its store in batches and has at most a window of them on the way to the broker.
Its loop is driven by events: a controller makes a step when a batch was handed over, when a poll found too few
messages, when a batch was confirmed, and when the broker is unavailable. The set point is not used (pass 0.0).
"""

from __future__ import annotations

from typing import NamedTuple

from flyball.control.step import Sample, Value, is_usable
from flyball.errors import InvalidValue


class PublisherMeasurement(NamedTuple):
    """The measurement: what happened since the step before. Negative times mean that it did not happen."""

    pending: float = 0.0
    """Messages that wait in the store now."""
    arrivals: float = 0.0
    """Messages accepted since the last step."""
    short_poll: float = 0.0
    """1: a poll found fewer messages than N and sent nothing."""
    handed_s: float = -1.0
    """Time of a batch from being due until its last message was handed over (the paper's T_mpt)."""
    transfer_s: float = -1.0
    """Time of a batch in flight, from hand-over to the broker's confirm (the paper's s_i)."""
    confirmed: float = 0.0
    """Messages of that batch."""
    in_flight: float = 0.0
    """Messages in flight when it was confirmed, itself included (the paper's n_i)."""
    limited: float = 0.0
    """1: the window held messages back while it was on the way, so the delivery rate is the broker's limit."""
    unavailable: float = 0.0
    """1: the broker blocks senders, refused, or has confirmed nothing for too long."""


class Batching(NamedTuple):
    """The command: when a batch leaves, and how much may be on the way.

    A batch leaves when the poll is due and `least` messages wait (or the longest wait is over); it is at most
    `most` messages. The publisher paper's N is both. `poll_s` 0: no polling, every arrival is looked at. `window`
    bounds the messages on the way, which is that paper's number of workers.
    """

    least: float
    most: float
    poll_s: float
    window: float


def measurement_of(sample: Sample) -> PublisherMeasurement | None:
    """The measurement of a sample; None where it is missing, not finite or of another shape."""
    values = sample.measurement
    if not is_usable(values) or not is_usable(sample.setpoint):
        return None
    if not isinstance(values, tuple) or len(values) != len(PublisherMeasurement._fields):
        return None
    return PublisherMeasurement(*values)


def batching(command: Value) -> Batching:
    """A command of the actuator's shape.

    >>> batching((1.0, 10.0, 0.05, 100.0)).poll_s
    0.05
    """
    if not isinstance(command, tuple) or len(command) != len(Batching._fields):
        raise InvalidValue(
            f"the command of a publisher must be (least, most, poll_s, window), got {command!r}: "
            "start it with flyball.publisher.policy.start"
        )
    return Batching(*(float(part) for part in command))
