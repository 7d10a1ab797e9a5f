"""Dead letters of an outbox in memory: messages that were accepted and that too few targets will ever store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from flyball.publisher.handle import Handle
from flyball.store.dead_letters import DeadLetter, no_such_letter


class RejectedHandle(NamedTuple):
    """A message that becomes a dead letter: which targets refused it, and why."""

    handle: Handle
    target: str
    reason: str


class DeadLetterBox(Protocol):
    """What a publisher asks of its dead letters, in a file or in memory. `numbers` None means all of them."""

    def count(self) -> tuple[int, int]:
        """Number of dead letters, and their bytes."""

    def read_many(self, limit: int = 1000, after: int = 0) -> list[DeadLetter]: ...

    def delete(self, numbers: Iterable[int] | None = None) -> int: ...


class MemoryDeadLetters:
    """The oldest first, in the order of the dictionary."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._letters: dict[int, tuple[int, DeadLetter]] = {}
        self.size_bytes = 0

    def add(self, rejected: RejectedHandle) -> None:
        handle = rejected.handle
        letter = DeadLetter(
            number=handle.seq,
            message=handle.message,
            channel=handle.channel,
            urgency=handle.urgency,
            accepted_s=None,
            rejected_s=self._clock(),
            target=rejected.target,
            reason=rejected.reason,
        )
        self._letters[handle.seq] = (handle.size_bytes, letter)
        self.size_bytes += handle.size_bytes

    def count(self) -> tuple[int, int]:
        return len(self._letters), self.size_bytes

    def read_many(self, limit: int = 1000, after: int = 0) -> list[DeadLetter]:
        numbers = sorted(number for number in self._letters if number > after)
        return [self._letters[number][1] for number in numbers[:limit]]

    def delete(self, numbers: Iterable[int] | None = None) -> int:
        return len(self.take(numbers))

    def take(self, numbers: Iterable[int] | None = None) -> list[tuple[int, DeadLetter]]:
        """Remove and return them with their sizes."""
        wanted = list(self._letters) if numbers is None else list(dict.fromkeys(numbers))
        for number in wanted:
            if number not in self._letters:
                raise no_such_letter(number)
        letters = [self._letters.pop(number) for number in wanted]
        self.size_bytes -= sum(size for size, _ in letters)
        return letters

    def discard_oldest(self, max_bytes: int) -> int:
        """Remove the oldest until at most `max_bytes` are left; return how many were removed."""
        left_bytes, numbers = self.size_bytes, list[int]()
        for number, (size_bytes, _) in self._letters.items():
            if left_bytes <= max_bytes:
                break
            left_bytes -= size_bytes
            numbers.append(number)
        return len(self.take(numbers))
