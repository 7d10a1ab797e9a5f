"""A consumer's place in a group: the readers of the queues that it is granted, and its session."""

from __future__ import annotations

from flyball.brokers.port import Broker, Receiver, Start
from flyball.brokers.url import BrokerUrl
from flyball.groups.client_member import ClientMember
from flyball.groups.config import GroupConfig
from flyball.groups.member import GroupMember
from flyball.groups.policy.reports import HandOvers
from flyball.groups.readers.open import ConsumerReaders, open_readers


def member_url(url: str, config: GroupConfig) -> str:
    """The URL at which a member connects: RabbitMQ should notice a frozen member about when its session expires.

    >>> group = GroupConfig(name="shop", topics=["orders"], store="sqlite:///groups.db")
    >>> member_url("amqp://localhost/", group), member_url("kafka://localhost:9092", group)
    ('amqp://localhost/?heartbeat_s=2', 'kafka://localhost:9092')
    """
    parsed = BrokerUrl.parse(url)
    if parsed.scheme not in ("amqp", "amqps") or "heartbeat_s" in parsed.options:
        return url
    # The server closes a connection after two to three heartbeats of silence.
    return f"{url}{'&' if '?' in url else '?'}heartbeat_s={max(1, int(config.session_timeout_s / 3))}"


class Membership:
    """One member, from `open` until `leave`."""

    def __init__(self, readers: ConsumerReaders, member: GroupMember | ClientMember) -> None:
        self._readers, self._member = readers, member

    @classmethod
    async def open(cls, broker: Broker, config: GroupConfig, *, window: int, start: Start) -> Membership:
        """Join the group. `start`: where it begins to read a log of which it has read nothing yet."""
        readers = open_readers(broker, config.name, config.store, window=window, start=start)
        kind = ClientMember if config.mode == "client" else GroupMember
        member = kind(config, readers, window=lambda: max(1, readers.receiver.window))
        readers.receiver.may_hand_out = lambda: member.may_read
        try:
            await member.start()
        except BaseException:
            await readers.close()
            raise
        return cls(readers, member)

    @property
    def receiver(self) -> Receiver:
        return self._readers.receiver

    @property
    def hand_overs(self) -> HandOvers:
        return self._readers.hand_overs

    @property
    def owned(self) -> dict[str, int]:
        """The generation of each queue that it reads, by the queue's name."""
        return {f"{topic}.{number}": generation for (topic, number), generation in self._member.owned.items()}

    async def depth(self) -> int:
        """Messages that wait in the queues that are read."""
        return await self._readers.depth()

    async def wait(self) -> None:
        """Wait until it can no longer be in the group; raises the reason."""
        await self._member.wait()

    async def leave(self) -> None:
        """Hand all queues over. A member with an id of its own may return to them."""
        await self._member.stop()
