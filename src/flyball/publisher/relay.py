"""The account of accepted messages: which are in memory, which are in the outbox only, and which are done.

store() ─▶ outbox ─▶ backlog ─▶ sender of each target ─▶ confirmed ─▶ removed from the outbox
                        ▲
other writers, an earlier run: found by their numbers, read from the outbox when there is room
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from flyball.brokers import Message
from flyball.brokers.port import BrokerError
from flyball.publisher.handle import Handle, Rejected, from_store
from flyball.publisher.outbox import PublisherOutbox
from flyball.publisher.receipts import ReceiptTracker
from flyball.publisher.store_workers import WorkerPool
from flyball.publisher.target_sender import Targets, TargetSender, now_s
from flyball.store import StoreError
from flyball.store.outbox import Pending

_MAX_IN_MEMORY = 20_000
_READ_LIMIT = 500
_LOOK_S = 0.05
_RETRY_S = 0.5
_GATHER_S = 0.01
"""Confirmed messages leave the store together after this time: its writer is for those who wait for a commit."""


class _Range(NamedTuple):
    """Numbers that are in the store only. Ours were counted when they were accepted."""

    first: int
    last: int
    ours: bool


class Backlog:
    """Which accepted messages are in memory, and which are in the store only.

    Sequence numbers grow by one with every message that anybody commits to the outbox. So after each commit of
    ours, and whenever we look, a number beyond the last one known says that others (the application's own
    transactions, an earlier run) have written, and which numbers those are. What does not fit into memory is
    treated the same way: its numbers are read from the store when there is room.

    `in_memory` counts messages in memory; from `max_in_memory` on, new ones stay in the store only. `unread`:
    those up to `newest` are in the store.
    """

    def __init__(
        self, newest: int, *, required: int, urgency_step_s: float, max_in_memory: int, unread: bool = True
    ) -> None:
        self._required, self._urgency_step_s, self._max_in_memory = required, urgency_step_s, max_in_memory
        self._known = newest
        self._unread: deque[_Range] = deque([_Range(1, newest, ours=False)] if newest and unread else [])
        # Somebody may be waiting for the confirm of a message that is in the store only.
        self._store_only: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self.in_memory = 0

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)

    @property
    def has_room(self) -> bool:
        return self.in_memory < self._max_in_memory

    def add_committed(self, handles: Sequence[Handle], seqs: Sequence[int], time_s: float) -> list[Handle]:
        """Our messages are safe under these numbers; return those that are to be sent from memory."""
        self.add_newest(seqs[0] - 1)
        self._known = seqs[-1]
        for handle, seq in zip(handles, seqs, strict=True):
            handle.seq, handle.accepted = seq, True
            handle.due_s = time_s + handle.urgency * self._urgency_step_s
        # Behind unread ones nothing may overtake, except what is more urgent than usual.
        if not self._unread and self.has_room:
            self.in_memory += len(handles)
            return list(handles)
        urgent = [handle for handle in handles if handle.urgency == 0]
        rest = [handle for handle in handles if handle.urgency != 0]
        for handle in rest:
            self._add_unread(handle.seq, handle.seq, ours=True)
            self._store_only[handle.seq] = handle
            handle.message = Message(b"", handle.id)  # the store has it
        self.in_memory += len(urgent)
        return urgent

    def add_newest(self, newest: int) -> None:
        """The store has numbers up to `newest`: those beyond ours are somebody else's."""
        if newest > self._known:
            self._add_unread(self._known + 1, newest, ours=False)
            self._known = newest

    def next_range(self) -> tuple[int, int] | None:
        return self._unread[0][:2] if self._unread else None

    def add_read(self, until: int, limit: int, rows: Sequence[Pending]) -> tuple[list[Handle], int]:
        """Asked for `next_range`, which ended with number `until`, the store gave these rows, at most `limit`.

        Returns what is to be sent, and how many are new. While the store was read the range may have grown: what
        came after `until` has not been looked at.
        """
        _, last, ours = self._unread.popleft()
        read_to = rows[-1].seq if len(rows) >= limit else until
        if read_to < last:
            self._unread.appendleft(_Range(read_to + 1, last, ours))
        handles = []
        for pending in rows:
            stored = from_store(pending, self._required, self._urgency_step_s)
            waiting = self._store_only.pop(pending.seq, None)
            if waiting is not None:
                waiting.message = stored.message
            handles.append(stored if waiting is None else waiting)
        self.in_memory += len(handles)
        return handles, 0 if ours else len(handles)

    def _add_unread(self, first: int, last: int, *, ours: bool) -> None:
        before = self._unread[-1] if self._unread else None
        if before is not None and before.last == first - 1 and before.ours == ours:
            self._unread[-1] = _Range(before.first, last, ours)
        else:
            self._unread.append(_Range(first, last, ours))


class Relay:
    """Stores accepted messages, hands them to the senders of their channel, and removes what is confirmed.

    `newest` is the last number that was given before this publisher began. `receipts`, where it is set, keeps
    confirmed messages in the outbox until their delivery receipts come.
    """

    def __init__(
        self,
        outbox: PublisherOutbox,
        pool: WorkerPool,
        targets: Targets,
        *,
        newest: int,
        required: int,
        urgency_step_s: float,
    ) -> None:
        self._outbox, self._pool, self._targets, self._newest = outbox, pool, targets, newest
        self.in_memory = outbox.in_memory
        # Without a file nothing can be read again: all of it is in memory, and `max_bytes` alone bounds it.
        self._backlog = Backlog(
            newest,
            unread=not self.in_memory,
            required=required,
            urgency_step_s=urgency_step_s,
            max_in_memory=sys.maxsize if self.in_memory else _MAX_IN_MEMORY,
        )
        # From the commit until the backlog has its numbers: who looks for the messages of other writers must not
        # mistake ours for theirs.
        self._accounting = asyncio.Lock()
        self.channels: dict[str, list[TargetSender]] = {}
        """The senders of every channel that was published to."""
        self._confirmed_seqs: list[int] = []
        self._remover: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._space_wanted = False
        self._closed = False
        self.receipts: ReceiptTracker | None = None
        self.accepted = self.confirmed = self.rejected = self.unconfirmed = 0

    # --- life cycle ---------------------------------------------------------------------------------------------

    async def open(self, channel: str) -> None:
        """Connect to the targets of a channel; a target that does not exist is an error."""
        await asyncio.gather(*(sender.open() for sender in self._make_senders(channel)))

    def start(self) -> None:
        """Begin to send what is in the outbox already, and to look for what others write there."""
        if not self.in_memory:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
            self._read_on()

    async def drain(self) -> None:
        """Wait until everything that was accepted is confirmed."""
        while self.unconfirmed or self._backlog.has_unread:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sender.close() for senders in self.channels.values() for sender in senders))
        for task in (self._watcher, self._reader):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        remover = self._remover
        if remover is not None:
            await asyncio.wait([remover], timeout=_RETRY_S)
            remover.cancel()

    # --- into the outbox, and on to the targets -----------------------------------------------------------------

    async def store(self, handles: Sequence[Handle]) -> None:
        """Return when these are safe in the outbox and on their way; raises if the outbox does not take them."""
        if self.in_memory:
            self._add(handles, self._outbox.append(handles))
            return
        async with self._accounting:
            self._add(handles, await self._pool.run("receive", self._outbox.append, handles))

    def senders(self, channel: str) -> list[TargetSender]:
        """Return the senders of a channel, one for each target; new ones connect in the background."""
        senders = self.channels.get(channel)
        if senders is None:
            senders = self._make_senders(channel)
            for sender in senders:
                sender.open_later()
        return senders

    def resend(self, handles: list[Handle]) -> None:
        """Send confirmed messages once more: their delivery receipts are overdue."""
        self._backlog.in_memory += len(handles)
        self.unconfirmed += len(handles)
        self._hand_over(handles)

    def is_behind(self) -> bool:
        """Whether messages of an earlier run wait in the outbox and are not handed over yet."""
        return (self._backlog.next_range() or (sys.maxsize, 0))[0] <= self._newest

    def _make_senders(self, channel: str) -> list[TargetSender]:
        senders = self._targets.senders(
            channel, self._newest, on_confirmed=self._confirm, on_rejected=self._reject
        )
        self.channels[channel] = senders
        return senders

    def _add(self, handles: Sequence[Handle], seqs: Sequence[int]) -> None:
        self.accepted += len(handles)
        self.unconfirmed += len(handles)
        self._hand_over(self._backlog.add_committed(handles, seqs, now_s()))
        if self._backlog.has_unread:
            self._read_on()

    def _hand_over(self, handles: list[Handle]) -> None:
        if not handles:
            return
        if self.receipts is not None:
            self.receipts.add_in_flight(handles)
        channel = handles[0].channel
        if all(handle.channel == channel for handle in handles):
            for sender in self.senders(channel):
                sender.add(handles)
            return
        for handle in handles:
            for sender in self.senders(handle.channel):
                sender.add([handle])

    # --- confirmed, and out of the outbox -----------------------------------------------------------------------

    def _confirm(self, handles: list[Handle]) -> None:
        self.confirmed += len(handles) if self.receipts is None else self.receipts.add_confirmed(handles)
        self._finish(handles, remove=self.receipts is None)

    def _reject(self, handle: Handle, error: BrokerError) -> None:
        if handle._error is None and not handle.is_confirmed:
            self.rejected += 1
            handle._fail(Rejected(f"message {handle.id} cannot be published: {error}"))
            if self.receipts is not None:
                self.receipts.discard(handle)
            self._finish([handle], remove=True)

    def _finish(self, handles: list[Handle], *, remove: bool) -> None:
        """These are done: out of memory, and out of the outbox unless they wait there for receipts."""
        self._backlog.in_memory -= len(handles)
        self.unconfirmed -= len(handles)
        if remove and self.in_memory:
            self._outbox.confirm([handle.seq for handle in handles])
            self._space.set()
        elif remove:
            self._confirmed_seqs += [handle.seq for handle in handles]
            if self._remover is None:
                self._remover = asyncio.get_running_loop().create_task(self._remove())
        if self._backlog.has_unread:
            self._read_on()
        self._changed.set()

    async def _remove(self) -> None:
        """Remove what is confirmed from the store, together with all that is confirmed meanwhile."""
        try:
            while self._confirmed_seqs:
                if not self._space_wanted:
                    await asyncio.sleep(_GATHER_S)
                seqs, self._confirmed_seqs = self._confirmed_seqs, []
                try:
                    await self._pool.run("publish", self._outbox.confirm, seqs)
                    self._space.set()
                except StoreError:
                    # A full disk cannot even delete; until it can, a crash would send these again.
                    self._confirmed_seqs = seqs + self._confirmed_seqs
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._remover = None

    def on_receipts(self) -> None:
        """Delivery receipts removed messages from the outbox: there may be room."""
        self._space.set()
        self._changed.set()

    async def wait_for_space(self, timeout_s: float) -> None:
        """Wait until something left the outbox, at most `timeout_s`."""
        self._space.clear()
        self._space_wanted = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._space.wait(), timeout_s)
        self._space_wanted = False

    # --- what is in the outbox only -----------------------------------------------------------------------------

    def _read_on(self) -> None:
        if self._reader is None and not self._closed:
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        """Bring what is in the store only into memory, as far as there is room."""
        try:
            while self._backlog.has_room:
                numbers = self._backlog.next_range()
                if numbers is None:
                    break
                try:
                    rows = await self._pool.run("publish", self._outbox.read, *numbers, _READ_LIMIT)
                except StoreError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                handles, new = self._backlog.add_read(numbers[1], _READ_LIMIT, rows)
                self.unconfirmed += new
                self._hand_over(handles)
                self._changed.set()
        finally:
            self._reader = None

    async def _watch(self) -> None:
        """Notice what the application has written in its own transactions."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with suppress(StoreError):
                async with self._accounting:
                    self._backlog.add_newest(await self._pool.run("publish", self._outbox.newest))
            if self._backlog.has_unread:
                self._read_on()
