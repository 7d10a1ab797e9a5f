"""What all brokers have in common: they close their receivers and refuse channels of a kind they do not have."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Generic, NoReturn, Self, TypeVar

from flyball.brokers.core.checks import ChannelSpec
from flyball.brokers.core.names import check_name
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.port import Kind, Unsupported

AnyReceiver = TypeVar("AnyReceiver", bound=BaseReceiver)


class BaseBroker(ABC, Generic[AnyReceiver]):
    """Closes the receivers that were opened through it."""

    def __init__(self) -> None:
        self._receivers: list[AnyReceiver] = []

    def _register_receiver(self, receiver: AnyReceiver) -> AnyReceiver:
        """Remember a receiver for `close`; those that were closed meanwhile are dropped."""
        self._receivers = [*(each for each in self._receivers if not each.closed), receiver]
        return receiver

    async def _close_receivers(self) -> None:
        await asyncio.gather(*(receiver.close() for receiver in self._receivers))
        self._receivers.clear()

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
        spec = ChannelSpec(check_name(channel), kind, partitions, max_bytes, retention_s, durable)
        self._check_kind(spec)
        spec.check()
        await self._declare(spec)

    def _check_kind(self, spec: ChannelSpec) -> None:
        """Refuse the kind of channel that this broker does not have."""

    @abstractmethod
    async def _declare(self, spec: ChannelSpec) -> None: ...

    async def has_dead_letter_exchange(self, queue: str) -> bool | None:  # noqa: ARG002  only RabbitMQ has them
        return False

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class LogBroker(BaseBroker[AnyReceiver]):
    """A broker whose channels are all logs."""

    _subject: ClassVar[str]
    """The subject and verb of an error text: "Kafka has"."""

    async def receiver(self, queue: str, *, window: int = 100) -> NoReturn:  # noqa: ARG002  there is none to open
        raise Unsupported(
            f"{self._subject} no queues (asked for {queue!r}): subscribe to the log with a group instead"
        )

    def _check_kind(self, spec: ChannelSpec) -> None:
        if spec.kind == "queue":
            raise Unsupported(f"{self._subject} no queues (asked for {spec.name!r}): declare it as a log")
