"""The account of accepted messages: which are in memory, which are in the outbox only, and which are done.

store() ─▶ outbox ─▶ backlog ─▶ sender of each target ─▶ confirmed ─▶ removed from the outbox
                                                   └──▶ rejected ──▶ dead letters of the outbox
                        ▲
other writers, an earlier run: found by their numbers, read from the outbox when there is room
"""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from flyball.brokers import Message
from flyball.brokers.connections import Connections
from flyball.brokers.port import BrokerError
from flyball.errors import InvalidValue
from flyball.futures import wait_at_most
from flyball.message import check_message, check_name
from flyball.publisher.dead_letters import RejectedHandle
from flyball.publisher.handle import Handle, PublisherClosed, Rejected, from_store, total_bytes
from flyball.publisher.outbox import FileOutbox, MemoryOutbox, PublisherOutbox
from flyball.publisher.policy import largest_body
from flyball.publisher.receipts import ReceiptTracker
from flyball.publisher.target_sender import Targets, TargetSender, now_s
from flyball.store import DeadLetter, StoreError
from flyball.store.outbox import Pending
from flyball.store.worker_pool import WorkerPool

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_IN_MEMORY = 20_000
_MAX_IN_MEMORY_BYTES = 64 << 20
_READ_LIMIT = 500
_READ_LIMIT_BYTES = 4 << 20
_URGENT_FACTOR = 2
"""Urgent messages need not wait in the store until so many times the usual limits are in memory."""
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

    `in_memory` counts messages in memory and `in_memory_bytes` their bytes; from `max_in_memory` or `max_bytes`
    on, new ones stay in the store only. `unread`: those up to `newest` are in the store.
    """

    def __init__(
        self,
        newest: int,
        *,
        urgency_step_s: float,
        max_in_memory: int,
        max_bytes: int = sys.maxsize,
        unread: bool = True,
    ) -> None:
        self._urgency_step_s, self._max_in_memory, self._max_bytes = urgency_step_s, max_in_memory, max_bytes
        self._known = newest
        self._unread: deque[_Range] = deque([_Range(1, newest, ours=False)] if newest and unread else [])
        # Somebody may be waiting for the confirm of a message that is in the store only.
        self._store_only: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self.in_memory = self.in_memory_bytes = 0

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)

    @property
    def has_room(self) -> bool:
        return self._has_room(1)

    def _has_room(self, factor: int) -> bool:
        return self.in_memory < factor * self._max_in_memory and self.in_memory_bytes < factor * self._max_bytes

    def add_in_memory(self, handles: Sequence[Handle]) -> None:
        self.in_memory += len(handles)
        self.in_memory_bytes += total_bytes(handles)

    def remove_from_memory(self, handles: Sequence[Handle]) -> None:
        self.in_memory -= len(handles)
        self.in_memory_bytes -= total_bytes(handles)

    def add_committed(self, handles: Sequence[Handle], seqs: Sequence[int], time_s: float) -> list[Handle]:
        """Our messages are safe under these numbers; return those that are to be sent from memory."""
        self.add_newest(seqs[0] - 1)
        self._known = seqs[-1]
        for handle, seq in zip(handles, seqs, strict=True):
            handle.seq, handle.accepted = seq, True
            handle.due_s = time_s + handle.urgency * self._urgency_step_s
        # Behind unread ones nothing may overtake, except what is more urgent than usual.
        if not self._unread and self.has_room:
            self.add_in_memory(handles)
            return list(handles)
        overtakes = self._has_room(_URGENT_FACTOR)
        urgent = [handle for handle in handles if overtakes and handle.urgency == 0]
        rest = [handle for handle in handles if handle.urgency != 0] if overtakes else handles
        for handle in rest:
            self._add_unread(handle.seq, handle.seq, ours=True)
            self._store_only[handle.seq] = handle
            handle.message = Message(b"", handle.id)  # the store has it
        self.add_in_memory(urgent)
        return urgent

    def add_newest(self, newest: int) -> None:
        """The store has numbers up to `newest`: those beyond ours are somebody else's."""
        if newest > self._known:
            self._add_unread(self._known + 1, newest, ours=False)
            self._known = newest

    def next_range(self) -> tuple[int, int] | None:
        return self._unread[0][:2] if self._unread else None

    def add_read(self, read_to: int, rows: Sequence[Pending]) -> tuple[list[Handle], int]:
        """Asked for `next_range`, the store gave these rows, which are all it has up to number `read_to`.

        Returns what is to be sent, and how many are new. While the store was read the range may have grown: what
        came after has not been looked at.
        """
        _, last, ours = self._unread.popleft()
        if read_to < last:
            self._unread.appendleft(_Range(read_to + 1, last, ours))
        handles = []
        for pending in rows:
            stored = from_store(pending, self._urgency_step_s)
            waiting = self._store_only.pop(pending.seq, None)
            if waiting is not None:
                waiting.message = stored.message
            handles.append(stored if waiting is None else waiting)
        self.add_in_memory(handles)
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

    The books: accepted + from_outbox = confirmed + rejected + waiting, at any moment. A message is confirmed as
    soon as `required` targets have it, and leaves the outbox; the other targets still get it from memory. It is
    rejected when every target has decided and fewer have it, and becomes a dead letter.
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
        self._required = required
        self.in_memory = outbox.in_memory
        # Without a file nothing can be read again: all of it is in memory, and `max_bytes` alone bounds it.
        self._backlog = Backlog(
            newest,
            unread=not self.in_memory,
            urgency_step_s=urgency_step_s,
            max_in_memory=sys.maxsize if self.in_memory else _MAX_IN_MEMORY,
            max_bytes=sys.maxsize if self.in_memory else _MAX_IN_MEMORY_BYTES,
        )
        # From the commit until the backlog has its numbers: who looks for the messages of other writers must not
        # mistake ours for theirs.
        self._accounting = asyncio.Lock()
        self._connections = Connections()
        self.channels: dict[str, list[TargetSender]] = {}
        """The senders of every channel that was published to."""
        self._refusals: dict[Handle, list[tuple[str, str]]] = {}
        """Messages that some targets refused while others have not decided: which targets, and why."""
        self._confirmed_seqs: list[int] = []
        self._rejected: list[RejectedHandle] = []
        self._remover: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._space_wanted = False
        self._closed = False
        self.receipts: ReceiptTracker | None = None
        self.accepted = self.confirmed = self.rejected = self.unconfirmed = self.from_outbox = 0
        self._repeats = 0
        """How many of the unconfirmed messages were confirmed before."""
        self.last_rejection: str | None = None

    # --- life cycle ---------------------------------------------------------------------------------------------

    async def open(self, channel: str) -> None:
        """Connect to the targets of a channel; a target that does not exist is an error."""
        loop = asyncio.get_running_loop()
        opening = [loop.create_task(sender.open()) for sender in self._make_senders(channel)]
        try:
            await asyncio.gather(*opening)
        except BaseException:  # where one target refuses, none stays open
            for task in opening:
                task.cancel()
            await asyncio.wait(opening)
            raise

    def start(self) -> None:
        """Begin to send what is in the outbox already, and to look for what others write there."""
        if not self.in_memory:
            self._watcher = asyncio.get_running_loop().create_task(self._watch())
            self._read_on()

    @property
    def waiting(self) -> int:
        """Messages that are neither confirmed nor rejected."""
        return self.unconfirmed - self._repeats

    async def drain(self) -> None:
        """Wait until everything that was accepted is confirmed or rejected."""
        while self.unconfirmed or self._backlog.has_unread:
            if self._closed:
                raise PublisherClosed(
                    f"the publisher closed before the last message was confirmed: {self._outbox.fate}"
                )
            self._changed.clear()
            await self._changed.wait()

    async def wait_for_others(self) -> None:
        """Wait until targets beyond the required ones have what is confirmed, as long as they store messages."""
        while self._required < self._targets.count and any(
            sender.outstanding and sender.is_healthy for sender in self._all_senders()
        ):
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Stop reading the outbox, then sending; what is confirmed by then is still removed from the outbox."""
        self._closed = True
        self._changed.set()
        await _end(self._watcher, self._reader)
        await asyncio.gather(*(sender.close() for sender in self._all_senders()))
        for sender in self._all_senders():
            if missing := sender.count_missing():
                log.warning(
                    "%s does not have %d messages that other targets have confirmed: %s",
                    sender.target.name,
                    missing,
                    sender.problem or "it was too slow, raise close_timeout_s",
                )
        if self._remover is not None:
            await asyncio.wait([self._remover], timeout=_RETRY_S)
            await _end(self._remover)

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

    def max_body_bytes(self, channel: str) -> int | None:
        """The largest body that enough targets of a channel can take; None: none is known."""
        senders = self.senders(channel)
        if len(senders) == 1:
            return senders[0].max_body_bytes
        return largest_body([sender.max_body_bytes for sender in senders], self._required)

    def resend(self, handles: list[Handle]) -> None:
        """Send confirmed messages once more: their delivery receipts are overdue."""
        for handle in handles:
            handle.repeat = True
        self._repeats += len(handles)
        self._backlog.add_in_memory(handles)
        self.unconfirmed += len(handles)
        self._hand_over(handles)

    def is_behind(self) -> bool:
        """Whether messages of an earlier run wait in the outbox and are not handed over yet."""
        return (self._backlog.next_range() or (sys.maxsize, 0))[0] <= self._newest

    def _all_senders(self) -> list[TargetSender]:
        return [sender for senders in self.channels.values() for sender in senders]

    def _make_senders(self, channel: str) -> list[TargetSender]:
        senders = self._targets.senders(
            channel,
            self._newest,
            self._connections,
            on_stored=self._count_confirms,
            on_refused=self._count_refusal,
        )
        self.channels[channel] = senders
        return senders

    def _add(self, handles: Sequence[Handle], seqs: Sequence[int], *, ours: bool = True) -> None:
        self._count_new(len(handles), ours=ours)
        self._hand_over(self._backlog.add_committed(handles, seqs, now_s()))
        if self._backlog.has_unread:
            self._read_on()

    def _count_new(self, count: int, *, ours: bool) -> None:
        if ours:
            self.accepted += count
        else:
            self.from_outbox += count
        self.unconfirmed += count

    def _hand_over(self, handles: list[Handle]) -> None:
        if not handles:
            return
        if self.receipts is not None:
            self.receipts.add_in_flight(handles)
        if self._targets.count > 1:  # with one target a handle expects its confirm from the beginning
            for handle in handles:
                handle._expect(self._required, self._targets.count)
        channel = handles[0].channel
        if all(handle.channel == channel for handle in handles):
            for sender in self.senders(channel):
                sender.add(handles)
            return
        for handle in handles:
            for sender in self.senders(handle.channel):
                sender.add([handle])

    # --- confirmed or rejected, and out of the outbox -----------------------------------------------------------

    def _count_confirms(self, handles: list[Handle]) -> None:
        """One target has stored these."""
        confirmed = [handle for handle in handles if handle._confirm()]
        if confirmed:
            repeats = self._settle(confirmed)
            self.confirmed += len(confirmed) - repeats
            if self.receipts is not None:
                self.receipts.add_confirmed(confirmed)
            else:
                self._remove([handle.seq for handle in confirmed])
        if self._refusals:
            for handle in handles:
                if handle in self._refusals and handle.is_rejected:
                    self._reject(handle)
                elif handle.is_confirmed:
                    self._refusals.pop(handle, None)

    def _count_refusal(self, handle: Handle, target: str, error: BrokerError | InvalidValue) -> None:
        """One target will never store this."""
        if handle.is_confirmed:
            log.warning("%s refuses message %s, which other targets have confirmed: %s", target, handle.id, error)
            return
        self._refusals.setdefault(handle, []).append((target, str(error)))
        handle._refuse(Rejected(f"message {handle.id} cannot be published: {error}"))
        if handle.is_rejected:
            self._reject(handle)

    def _reject(self, handle: Handle) -> None:
        """Too few targets will ever have it: it becomes a dead letter."""
        refusals = self._refusals.pop(handle)
        target = ", ".join(dict.fromkeys(target for target, _ in refusals))
        reason = self.last_rejection = "; ".join(dict.fromkeys(reason for _, reason in refusals))
        log.error("message %s for %r is a dead letter of the outbox now: %s", handle.id, handle.channel, reason)
        repeats = self._settle([handle])
        self.confirmed -= repeats
        self.rejected += 1
        if self.receipts is not None:
            self.receipts.discard(handle)
        self._remove(rejected=[RejectedHandle(handle, target, reason)])

    def _settle(self, handles: list[Handle]) -> int:
        """These need not be in memory any more; return how many of them were confirmed before."""
        repeats = sum(handle.repeat for handle in handles) if self._repeats else 0
        self._repeats -= repeats
        self._backlog.remove_from_memory(handles)
        self.unconfirmed -= len(handles)
        if self._backlog.has_unread:
            self._read_on()
        self._changed.set()
        return repeats

    def _remove(self, seqs: Sequence[int] = (), rejected: Sequence[RejectedHandle] = ()) -> None:
        """Take these out of the outbox: confirmed ones for good, the others into the dead letters."""
        if self.in_memory:
            self._outbox.settle(seqs, rejected)
            self._space.set()
            return
        self._confirmed_seqs += seqs
        self._rejected += rejected
        if self._remover is None:
            self._remover = asyncio.get_running_loop().create_task(self._remove_from_store())

    async def _remove_from_store(self) -> None:
        """Remove what is settled from the store, together with all that is settled meanwhile."""
        try:
            while self._confirmed_seqs or self._rejected:
                if not self._space_wanted:
                    await asyncio.sleep(_GATHER_S)
                seqs, self._confirmed_seqs = self._confirmed_seqs, []
                rejected = list(self._rejected)
                try:
                    await self._pool.run("publish", self._outbox.settle, seqs, rejected)
                    del self._rejected[: len(rejected)]
                    self._space.set()
                except StoreError:
                    # A full disk cannot even delete; until it can, a crash would send these again.
                    self._confirmed_seqs = seqs + self._confirmed_seqs
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._remover = None

    # --- dead letters -------------------------------------------------------------------------------------------

    async def dead_letters(self, limit: int, after: int) -> list[DeadLetter]:
        """Read the first `limit` dead letters with a number above `after`."""
        await self._store_rejected()
        return await self._call_store(self._outbox.dead_letters.read_many, limit, after)

    async def replay(self, numbers: Sequence[int] | None) -> int:
        """Put dead letters back, to be sent again; return how many."""
        await self._store_rejected()
        if isinstance(self._outbox, FileOutbox):
            # Under new numbers, which are found like those that any other program writes.
            count = await self._pool.run("publish", self._outbox.dead_letters.replay, numbers)
            await self._look()
            return count
        assert isinstance(self._outbox, MemoryOutbox)
        handles = self._outbox.take_dead_letters(numbers)
        if handles:
            self._add(handles, self._outbox.append(handles), ours=False)
        return len(handles)

    async def delete_dead_letters(self, numbers: Sequence[int] | None) -> int:
        """Remove dead letters for good; return how many."""
        await self._store_rejected()
        deleted = await self._call_store(self._outbox.dead_letters.delete, numbers)
        self._space.set()
        return deleted

    async def _store_rejected(self) -> None:
        """Do not wait for the remover: what it moves a second time is not in the outbox any more."""
        if self._rejected:
            await self._pool.run("publish", self._outbox.settle, (), list(self._rejected))

    async def _call_store(self, call: Callable[..., Result], *arguments: object) -> Result:
        return call(*arguments) if self.in_memory else await self._pool.run("publish", call, *arguments)

    def on_receipts(self) -> None:
        """Delivery receipts removed messages from the outbox: there may be room."""
        self._space.set()
        self._changed.set()

    async def wait_for_space(self, timeout_s: float) -> None:
        """Wait until something left the outbox, at most `timeout_s`."""
        self._space.clear()
        self._space_wanted = True
        with suppress(TimeoutError):
            await wait_at_most(self._space.wait(), timeout_s)
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
                    rows, read_to = await self._pool.run(
                        "publish", self._outbox.read_part, *numbers, _READ_LIMIT, _READ_LIMIT_BYTES
                    )
                except StoreError:
                    await asyncio.sleep(_RETRY_S)
                    continue
                handles, new = self._backlog.add_read(read_to, rows)
                self._count_new(new, ours=False)
                pairs = zip(handles, rows, strict=True)
                self._hand_over([handle for handle, row in pairs if self._check(handle, row)])
                self._changed.set()
        finally:
            self._reader = None

    def _check(self, handle: Handle, row: Pending) -> bool:
        """Reject what another program wrote into the outbox and no target can take; False: it is rejected."""
        try:
            if row.problem is not None:
                raise InvalidValue(row.problem)
            if row.channel not in self.channels:
                check_name(row.channel)
            handle.message = check_message(row.message)
        except InvalidValue as error:
            handle._expect(1, 1)
            if self.receipts is not None:
                self.receipts.add_in_flight([handle])  # `discard` ends it
            self._count_refusal(handle, "", error)
            return False
        return True

    async def _watch(self) -> None:
        """Notice what the application has written in its own transactions."""
        while True:
            await asyncio.sleep(_LOOK_S)
            with suppress(StoreError):
                await self._look()
            if self._backlog.has_unread:
                self._read_on()

    async def _look(self) -> None:
        """Find what was written into the outbox without this relay."""
        async with self._accounting:
            self._backlog.add_newest(await self._pool.run("publish", self._outbox.newest))
        if self._backlog.has_unread:
            self._read_on()


async def _end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
