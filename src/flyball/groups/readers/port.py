"""The interface between a member's session, which learns what it owns, and the readers that open and close queues.

A session calls `take` and `pass_on` for each queue that it gains or loses, and `release` at its end. Where the
broker itself hands queues over (`switches`), the member also stands by for the queues of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers as HandOvers
from flyball.groups.policy.reports import QueueLoad as QueueLoad


class QueueReaders(Protocol):
    """Reads the queues that a member owns."""

    @property
    def switches(self) -> bool:
        """The broker drains and hands over by itself, by the priorities of its consumers.

        It is known after the first call of `queues`.
        """

    @property
    def hand_overs(self) -> HandOvers: ...

    async def queues(self, topics: Mapping[str, int | None]) -> dict[str, list[int]]:
        """The numbers of the queues of each topic. None: as many as the broker has partitions of it."""

    async def take(self, queue: Queue, generation: int) -> None:
        """Begin to read a queue under a generation. A queue that is read already goes on without a pause."""

    async def release(self, queue: Queue, deadline_s: float) -> bool:
        """Stop taking messages, let those in flight be settled for at most `deadline_s`, and close the queue.

        True: it was clean. False: messages were in flight still, and went back. A queue that is not read: True.
        While a call waits, another one for the same queue may come with an earlier deadline, which then holds for
        both: the member's session is about to expire.
        """

    async def pass_on(self, queue: Queue, deadline_s: float) -> bool:
        """Release a queue that was granted to somebody else. Where `switches`: and stand by for it."""

    async def stand_by(self) -> None:
        """Where `switches`: subscribe to all queues, so that the broker has somebody if their reader is gone."""

    async def release_all(self, deadline_s: float) -> None:
        """Release every queue that is subscribed to, granted or not."""

    def loads(self) -> Mapping[Queue, QueueLoad]:
        """What was measured at each queue that is read."""

    async def close(self) -> None:
        """Close all queues; what is in flight goes back."""
