"""Recognises messages that a reader has already finished, by their id, within a stated horizon.

Kafka and AMQP store a message again when a sender repeats it, so the reader has to notice. Only ids that were
*acknowledged* are remembered: a message that came back because it was not acknowledged is new work, not a repeat.
Ids are unique within a channel, so a reader of several remembers pairs (channel, id); a reader of one, the ids.

The horizon: an id is recognised while it is among the last `max_ids` acknowledged (at times a quarter more)
**and** was acknowledged less than `max_age_s` ago. Beyond that a repeat is delivered again, which at-least-once
delivery allows. The memory is bounded too: about 170 B an id and 60 B for its pair, if any: 17 to 29 MB for
100,000.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from flyball.errors import InvalidValue

MAX_IDS = 100_000
MAX_AGE_S = 600.0

Key = TypeVar("Key", bound=Hashable)


class FinishedIds:
    """The ids acknowledged lately: exact, bounded, and cheap (one dictionary entry an id).

    A dictionary keeps the order of insertion, so the oldest ids are its first ones and are dropped in the order
    in which they came; no sorting, no second structure.

    >>> finished = FinishedIds(max_ids=2)
    >>> finished.add(["a", "b", "c"], now_s=0.0)
    >>> [finished.contains(id, now_s=1.0) for id in "abc"]
    [False, True, True]
    >>> finished.contains("c", now_s=601.0)
    False
    """

    __slots__ = ("_ids", "_max_age_s", "_max_ids")

    def __init__(self, max_ids: int = MAX_IDS, max_age_s: float = MAX_AGE_S) -> None:
        if max_ids < 0:
            raise InvalidValue(f"the number of ids to remember must be an integer >= 0, got {max_ids}")
        if not max_age_s > 0:
            raise InvalidValue(f"the age of ids to remember must be > 0 s, got {max_age_s}")
        self._max_ids = max_ids
        self._max_age_s = max_age_s
        self._ids: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ids: Iterable[Hashable], now_s: float) -> None:
        """Remember messages that are finished (acknowledged) at `now_s`, on any clock that never goes back."""
        known = self._ids
        fresh = dict.fromkeys(ids, now_s)
        if not known.keys().isdisjoint(fresh):
            for id in fresh:
                known.pop(id, None)  # at the end again: it was finished again just now
        known.update(fresh)
        surplus = len(known) - self._max_ids
        # In bulk, with a quarter of slack: deleting one by one leaves holes at the front of the dictionary that
        # every later look at its first entry would have to cross.
        if surplus > self._max_ids // 4:
            for id in list(islice(known, surplus)):
                del known[id]

    def contains(self, id: Hashable, now_s: float) -> bool:
        """Whether a message with this id was finished within the horizon."""
        finished_s = self._ids.get(id)
        return finished_s is not None and now_s - finished_s <= self._max_age_s

    def repeats(self, ids: Sequence[Key], now_s: float) -> set[Key]:
        """The ids that were finished before; where there are none, as usual, at the speed of a set operation.

        >>> finished = FinishedIds()
        >>> finished.add(["a", "b"], now_s=0.0)
        >>> finished.repeats(["b", "c"], now_s=1.0)
        {'b'}
        """
        if self._ids.keys().isdisjoint(ids):
            return set()
        return {id for id in ids if self.contains(id, now_s)}
