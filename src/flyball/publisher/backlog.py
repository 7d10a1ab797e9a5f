"""Which accepted messages are in memory, and which are in the store only.

Sequence numbers grow by one with every message that anybody commits to the outbox. So after each commit of ours,
and whenever we look, a number beyond the last one known tells that others (the application's own transactions, an
earlier run) have written, and which numbers those are. What does not fit into memory is treated the same way: its
numbers are read from the store when there is room.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from flyball.brokers import Message
from flyball.publisher.handle import Handle, from_store
from flyball.store.outbox import Pending


class _Range(NamedTuple):
    """Numbers that are in the store only. Ours were counted when they were accepted."""

    first: int
    last: int
    ours: bool


class Backlog:
    """`held` counts messages in memory; `most_held` is where new ones stay in the store only.

    `unread`: those up to `newest` are in the store.
    """

    def __init__(
        self, newest: int, *, required: int, urgency_step_s: float, most_held: int, unread: bool = True
    ) -> None:
        self._required, self._urgency_step_s, self._most_held = required, urgency_step_s, most_held
        self._known = newest
        self._unread: deque[_Range] = deque([_Range(1, newest, ours=False)] if newest and unread else [])
        # Somebody may be waiting for the confirm of a message that is in the store only.
        self._parked: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self.held = 0

    @property
    def unread(self) -> bool:
        return bool(self._unread)

    @property
    def has_room(self) -> bool:
        return self.held < self._most_held

    def committed(self, handles: Sequence[Handle], seqs: Sequence[int], now_s: float) -> list[Handle]:
        """Our messages are safe under these numbers; those that are to be sent from memory."""
        first = seqs[0]
        self.seen(first - 1)
        self._known = seqs[-1]
        for handle, seq in zip(handles, seqs, strict=True):
            handle.seq, handle.accepted = seq, True
            handle.due_s = now_s + handle.urgency * self._urgency_step_s
        # Behind unread ones nothing may overtake, except what is more urgent than usual.
        if not self._unread and self.has_room:
            self.held += len(handles)
            return list(handles)
        urgent = [handle for handle in handles if handle.urgency == 0]
        rest = [handle for handle in handles if handle.urgency != 0]
        for handle in rest:
            self._add_unread(handle.seq, handle.seq, ours=True)
            self._parked[handle.seq] = handle
            handle.message = Message(b"", handle.id)  # the store has it
        self.held += len(urgent)
        return urgent

    def seen(self, newest: int) -> None:
        """The store has numbers up to `newest`: those beyond ours are somebody else's."""
        if newest > self._known:
            self._add_unread(self._known + 1, newest, ours=False)
            self._known = newest

    def next_range(self) -> tuple[int, int] | None:
        return self._unread[0][:2] if self._unread else None

    def read(self, until: int, limit: int, found: Sequence[Pending]) -> tuple[list[Handle], int]:
        """Asked for `next_range`, which ended with number `until`, the store gave these, at most `limit`.

        Returns what is to be sent, and how many are new. While the store was read the range may have grown: what
        came after `until` has not been looked at.
        """
        _, last, ours = self._unread.popleft()
        looked_at = found[-1].seq if len(found) >= limit else until
        if looked_at < last:
            self._unread.appendleft(_Range(looked_at + 1, last, ours))
        handles = []
        for pending in found:
            fresh = from_store(pending, self._required, self._urgency_step_s)
            parked = self._parked.pop(pending.seq, None)
            if parked is not None:
                parked.message = fresh.message
            handles.append(fresh if parked is None else parked)
        self.held += len(handles)
        return handles, 0 if ours else len(handles)

    def _add_unread(self, first: int, last: int, *, ours: bool) -> None:
        before = self._unread[-1] if self._unread else None
        if before is not None and before.last == first - 1 and before.ours == ours:
            self._unread[-1] = _Range(before.first, last, ours)
        else:
            self._unread.append(_Range(first, last, ours))
