"""The one face that every broker shows to the rest of Flyball.

Two kinds of channel, declared by name:

* a **queue** holds each message until one receiver acknowledged it (RabbitMQ classic and quorum, SQLite, memory);
* a **log** keeps messages by partition and offset and can be read again (RabbitMQ streams, Kafka, SQLite, memory).

`Broker.capabilities` says which of the two a broker has. Channel names are hierarchical, words joined by dots
("city.lyon.traffic"). Whatever the kind, `subscribe(pattern, group)` gives every group every message that is
sent to a matching channel from then on, and shares a group's messages among its members. In a pattern `*`
stands for one word and `#` for any number of words, also none.

Delivery is at least once: a message that was delivered but not acknowledged is delivered again, to somebody,
with the same id. Everything is async and belongs to the event loop that opened it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

from flyball.errors import FlyballError
from flyball.message import HeaderValue as HeaderValue
from flyball.message import Message as Message
from flyball.message import new_id as new_id

Kind: TypeAlias = Literal["queue", "log"]
Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class SendResult:
    """What became of one message of a batch: stored (`error` None), or not, and why.

    `duplicate`: a log had this (producer, sequence) already, so nothing was stored again. `partition` and
    `offset` are set where the broker tells them.
    """

    id: str
    error: BrokerError | None = None
    duplicate: bool = False
    partition: int | None = None
    offset: int | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(slots=True)
class Delivery:
    """One message in the hands of a receiver, to be settled there exactly once.

    `tag` is the receiver's own mark. `redelivered` means it may have been seen before; `attempt` counts
    deliveries from 1 where the broker counts them.
    """

    message: Message
    channel: str
    tag: int
    redelivered: bool = False
    attempt: int | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Record:
    """One message at its place in a log."""

    partition: int
    offset: int
    message: Message
    stored_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do, so that a caller asks instead of trying."""

    queues: bool
    logs: bool
    durable: bool
    """Confirmed messages survive kill -9 and power loss of the broker."""
    dedup: bool
    """Logs drop repeats of a (producer, sequence) durably; else readers drop repeats by id."""
    shared_between_processes: bool
    max_body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    """What `list` tells about a channel. None: the broker does not tell."""

    name: str
    kind: Kind
    partitions: int = 1
    depth: int | None = None
    oldest_age_s: float | None = None


class Sender(Protocol):
    """Puts messages into one channel."""

    @property
    def blocked(self) -> bool:
        """The broker asks for silence (memory or disk alarm, full channel): sending would wait.

        It ends without anything being sent, so a caller may wait for that. A broker that does not answer is no
        reason: nobody can tell that it is back except by sending again, and the results say that it failed.
        """

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        """Send, wait until the broker has taken responsibility, and say what became of each, in order.

        One bad message does not fail its neighbours. A message whose fate is unknown (connection lost before
        the confirm) has the error `Unconfirmed`: it may or may not be stored, and is safe to send again
        with the same id.

        `sequence` numbers the first message for a sender that was opened with a producer name, the others
        follow; it must grow from call to call. A log drops what it already has up to that number.
        """

    async def last_sequence(self) -> int | None:
        """The highest sequence the log holds of this sender's producer (None: none, or no dedup there)."""

    async def close(self) -> None: ...


class Receiver(Protocol):
    """Takes messages from one queue or subscription.

    At most `window` messages are in flight, that is handed out and not settled. Raising the window takes
    effect at once; lowering it takes nothing back: the receiver hands out nothing until enough are settled.
    """

    @property
    def window(self) -> int: ...

    def set_window(self, window: int) -> None: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def occupied(self) -> int:
        """Places of the window that are taken: what is in flight and, where that counts, on its way back."""

    @property
    def parked(self) -> int:
        """Messages that the broker sent beyond the window; they wait here, untouched."""

    @property
    def round_trip_s(self) -> float:
        """How long a place is without a message between a settled one and the next, on average, while the broker
        has more; 0 where it is not measured."""

    def count_round_trip(self) -> bool:
        """From now on measure how long it takes until a settled message is replaced; where the broker sends ahead,
        the message's place is free only when the broker had the time to answer.

        The window then means what a broker's prefetch means, and the rate answers to it also where handlers
        are fast: rate = window / (handling + round trip). False: this broker is asked for each message, so a
        place is free at once, and empty until the answer is there.
        """

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        """Wait for at least one message, then return what is there, up to `max_messages` and the window.

        Empty only after `timeout_s` (None: wait for ever).
        """

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries one by one, for ever, for programs that need no batches."""

    async def ack(self, *deliveries: Delivery) -> None:
        """These are done: never deliver them again."""

    async def nack(self, *deliveries: Delivery, requeue: bool = True) -> None:
        """These were not done: deliver again, or (`requeue` False) drop or dead-letter them."""

    def may_return(self, delivery: Delivery) -> bool:
        """Whether giving back a message on which nobody failed costs nothing.

        A queue that counts deliveries drops what was delivered too often: there a message goes back at most
        once, and never within one of its limit. One that may not should be handled before `close`.
        """

    async def withdraw(self) -> list[Delivery]:
        """Take no more from the broker. What was not handed out goes back, as far as `may_return` lets it; the
        rest is handed out now, whatever the window: handle and settle it, then `close`."""

    async def close(self) -> None:
        """Stop; what is in flight and unsettled goes back."""


class Broker(Protocol):
    """A connection to one broker. Open it with `flyball.brokers.connect(url)`."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def sender(self, channel: str, *, producer: str | None = None) -> Sender:
        """A sender into a channel. On a log, `producer` names the source of its sequence numbers."""

    async def receiver(self, queue: str, *, window: int = 100) -> Receiver:
        """A receiver that shares the messages of an existing queue with the queue's other receivers."""

    async def subscribe(self, pattern: str, group: str, *, window: int = 100, start: Start = "latest") -> Receiver:
        """Join a group. The first member creates it; on logs, `start` says where a new group begins.

        By default it follows what comes from now on. `Consumer`, which does work, begins at the earliest message.
        """

    def read(self, log: str, partition: int, start: int, stop: int) -> AsyncIterator[Sequence[Record]]:
        """The records with start <= offset < stop that still exist, in order, in chunks. Takes nothing away."""

    async def bounds(self, log: str, partition: int) -> tuple[int, int]:
        """(first offset still there, offset the next record will get)."""

    async def declare(
        self,
        channel: str,
        kind: Kind = "queue",
        *,
        partitions: int = 1,
        max_bytes: int | None = None,
        retention_s: float | None = None,
        durable: bool = True,
    ) -> None:
        """Make sure the channel exists. Repeating is harmless; asking for another kind is an error.

        A full queue (`max_bytes`) blocks its senders; a full log drops its oldest records, like one past
        `retention_s`. Brokers round these to what they support.
        """

    async def delete(self, channel: str) -> None:
        """Remove a channel with its messages; no error if it does not exist."""

    async def purge(self, channel: str) -> int | None:
        """Empty a queue; the number of messages removed, where the broker tells."""

    async def depth(self, channel: str, group: str | None = None) -> int:
        """Messages waiting in a queue, stored in a log, or not yet acknowledged by a group."""

    async def oldest_age_s(self, channel: str) -> float | None:
        """Age of the oldest waiting message; None: empty, or the broker does not tell."""

    async def channels(self) -> list[ChannelInfo]: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BrokerError(FlyballError):
    """Base of what can go wrong with a broker."""


class Unreachable(BrokerError, ConnectionError):
    """Nobody answers there, or the connection was lost and could not be restored in time."""


class LoginRefused(BrokerError, PermissionError):
    """The broker answered and does not let us in."""


class NoSuchChannel(BrokerError, LookupError):
    """The queue or log does not exist."""


def no_such_channel(kind: str, name: str | None, where: str) -> NoSuchChannel:
    """The error for a `kind` ("queue", "log" or "queue or log") that does not exist at `where`.

    >>> no_such_channel("log", "orders", "in events.db")
    NoSuchChannel("there is no log 'orders' in events.db: declare it first (broker.declare, or flyball publish
    --declare log)")
    """
    option = "log" if kind == "log" else "queue"
    return NoSuchChannel(
        f"there is no {kind} {name!r} {where}: declare it first "
        f"(broker.declare, or flyball publish --declare {option})"
    )


class Blocked(BrokerError, BlockingIOError):
    """The broker takes nothing for now and the time to wait was used up."""


class TooLarge(BrokerError, ValueError):
    """The message is larger than the broker takes."""


class Unconfirmed(BrokerError, TimeoutError):
    """Sent, but the broker did not confirm: stored or not, nobody knows. Send it again with the same id."""


class Unsupported(BrokerError, NotImplementedError):
    """This broker cannot do that; its capabilities say so."""
