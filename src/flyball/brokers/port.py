"""The port: the interface through which the rest of Flyball uses every broker.

Two kinds of channel, declared by name:

* a **queue** holds each message until one receiver acknowledged it (RabbitMQ classic and quorum, SQLite, memory);
* a **log** keeps messages by partition and offset and can be read again (RabbitMQ streams, Kafka, SQLite, memory).

`Broker.capabilities` says which of the two a broker has. Channel names are hierarchical, words joined by dots
("city.lyon.traffic"). Whatever the kind, `subscribe(pattern, group)` gives every group every message that is
sent to a matching channel from then on, and shares a group's messages among its members. In a pattern `*`
stands for one word and `#` for any number of words, also none.

Delivery is at least once: a message that was delivered but not acknowledged is delivered again, to some receiver,
with the same id. All objects are async and belong to the event loop that opened them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

from flyball.errors import FlyballError, InvalidValue
from flyball.message import HeaderValue as HeaderValue
from flyball.message import Message as Message
from flyball.message import new_id as new_id

Kind: TypeAlias = Literal["queue", "log"]
Start: TypeAlias = Literal["earliest", "latest"]


@dataclass(slots=True)
class SendResult:
    """The outcome of sending one message of a batch: stored (`error` None), or not, and why.

    `duplicate`: a log had this (producer, sequence) already, so nothing was stored again. `partition` and
    `offset` are set where the broker reports them.
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
    """One message as a receiver gets it, to be acknowledged or rejected there exactly once.

    `tag` is the receiver's own number of it. `redelivered`: it may have been delivered before; `attempt` counts
    deliveries from 1 where the broker counts them.

    `unreadable` says why the message could not be decoded: another program wrote what Flyball does not understand.
    Its body is then as stored, and the other fields are what could be decoded; it is settled like any other.
    """

    message: Message
    channel: str
    tag: int
    redelivered: bool = False
    attempt: int | None = None
    partition: int | None = None
    offset: int | None = None
    unreadable: str | None = None


@dataclass(slots=True)
class Record:
    """One message of a log, with its partition and offset; `unreadable` as in `Delivery`."""

    partition: int
    offset: int
    message: Message
    stored_time_s: float | None = None
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a broker can do, so that a caller need not try."""

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
    """A channel as `Broker.channels` lists it. None: the broker does not report it."""

    name: str
    kind: Kind
    partitions: int = 1
    depth: int | None = None
    oldest_age_s: float | None = None


class Sender(Protocol):
    """Puts messages into one channel."""

    @property
    def blocked(self) -> bool:
        """The broker is applying back-pressure (resource alarm, full queue): sending would wait.

        It becomes False without anything being sent, so a caller may wait for that. A broker that does not answer
        is not `blocked`: only another attempt shows that it is back, and the results report the failure.
        """

    async def send_batch(self, messages: Sequence[Message], *, sequence: int | None = None) -> list[SendResult]:
        """Send, wait until the broker has stored the messages, and return the outcome of each, in order.

        One bad message does not fail the others: what no broker can carry (`check_message`) has the error
        `UnfitMessage`, what is too large `TooLarge`. A message whose outcome is unknown (connection lost before
        the confirm) has the error `Unconfirmed`: it may or may not be stored, and is safe to send again
        with the same id.

        `sequence` numbers the first message for a sender that was opened with a producer name, the others
        follow; it must grow from call to call. A log drops what it already has up to that number.
        """

    async def last_sequence(self) -> int | None:
        """The highest sequence of this sender's producer in the log (None: none, or no deduplication)."""

    async def close(self) -> None: ...


class Receiver(Protocol):
    """Receives messages from one queue or subscription.

    At most `window` messages are in flight, that is handed out and not settled. Raising the window takes
    effect at once; lowering it withdraws nothing: the receiver hands out nothing until enough are settled.
    """

    @property
    def window(self) -> int: ...

    def set_window(self, window: int) -> None: ...

    @property
    def in_flight(self) -> int: ...

    @property
    def occupied(self) -> int:
        """Slots of the window in use: messages in flight and, where that counts, replacements on their way."""

    @property
    def parked(self) -> int:
        """Messages that the broker sent beyond the window; they wait here, untouched."""

    @property
    def round_trip_s(self) -> float:
        """How long a slot is without a message between a settled one and the next, on average, while the broker
        has more; 0 where it is not measured."""

    def count_round_trip(self) -> bool:
        """From now on measure how long it takes until a settled message is replaced; where the broker sends ahead,
        the message's slot is free only when the broker had the time to answer.

        The window then means what a broker's prefetch means, and the rate answers to it also where handlers
        are fast: rate = window / (handling + round trip). False: this broker is asked for each message, so a
        slot is free at once, and empty until the answer is there.
        """

    async def receive(self, max_messages: int = 100, timeout_s: float | None = None) -> list[Delivery]:
        """Wait for at least one message, then return what is there, up to `max_messages` and the window.

        Empty only after `timeout_s` (None: wait without limit).
        """

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries one by one, without end, for programs that need no batches."""

    async def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge: these are done and are never delivered again."""

    async def nack(self, *deliveries: Delivery, requeue: bool = True) -> None:
        """Reject: these were not done. Deliver them again, or (`requeue` False) drop or dead-letter them."""

    def may_return(self, delivery: Delivery) -> bool:
        """Whether a message on which no handler failed can go back to the queue at no cost.

        A queue that counts deliveries drops what was delivered too often: there a message goes back at most
        once, and never within one of its limit. One that may not should be handled before `close`.
        """

    async def withdraw(self) -> list[Delivery]:
        """Stop consuming. Messages that were not handed out go back, as far as `may_return` allows; the rest is
        returned now, whatever the window: handle and settle it, then `close`."""

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
        """The records with start <= offset < stop that still exist, in order, in chunks. The log keeps them."""

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

        So is asking for more partitions than the log has; one that has more keeps them.

        A full queue (`max_bytes`) blocks its senders; a full log drops its oldest records, like one past
        `retention_s`. Brokers round these to what they support.
        """

    async def delete(self, channel: str) -> None:
        """Remove a channel with its messages; no error if it does not exist."""

    async def purge(self, channel: str) -> int | None:
        """Empty a queue; the number of messages removed, where the broker reports it."""

    async def depth(self, channel: str, group: str | None = None) -> int:
        """Messages waiting in a queue, stored in a log, or not yet acknowledged by a group."""

    async def oldest_age_s(self, channel: str) -> float | None:
        """Age of the oldest waiting message; None: empty, or the broker does not report it."""

    async def channels(self) -> list[ChannelInfo]: ...

    async def has_dead_letter_exchange(self, queue: str) -> bool | None:
        """Whether a dead-letter exchange gets what is rejected from the queue; None: that cannot be known."""

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class BrokerError(FlyballError):
    """Base of the errors of brokers."""


class Unreachable(BrokerError, ConnectionError):
    """The broker does not answer, or the connection was lost and could not be restored in time."""


class LoginRefused(BrokerError, PermissionError):
    """The broker refused the login or the permission."""


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
    """The broker applied back-pressure for longer than the sender waits."""


class TooLarge(BrokerError, ValueError):
    """The message is larger than the broker accepts."""


class UnfitMessage(BrokerError, InvalidValue):
    """The message is one that no broker can carry, or not this one."""


def is_permanent(error: BrokerError | None) -> bool:
    """Whether a message that failed with this error fails again however often it is sent.

    >>> is_permanent(TooLarge("9 MB")), is_permanent(Unconfirmed("no answer")), is_permanent(None)
    (True, False, False)
    """
    return isinstance(error, TooLarge | InvalidValue)


def may_pass(error: BrokerError) -> bool:
    """Whether a receiver that raised this error may work again without a change: its broker is away, or locked.

    >>> may_pass(Unreachable("no answer")), may_pass(NoSuchChannel("there is no queue 'q'"))
    (True, False)
    """
    return not isinstance(error, NoSuchChannel | LoginRefused | Unsupported)


class Unconfirmed(BrokerError, TimeoutError):
    """Sent and not confirmed: it is unknown whether it is stored. Send it again with the same id."""


class Unsupported(BrokerError, NotImplementedError):
    """This broker cannot do that; its capabilities say so."""
