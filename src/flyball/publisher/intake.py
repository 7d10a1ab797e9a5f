"""The receive side: a finite buffer of messages that wait to be safe in the outbox, written together.

Whoever publishes waits for the commit that holds its message. While one commit is under way the next one gathers,
so the busier it is the more messages share the wait for the disk, and a lone message waits for nobody. Urgent
messages wait for the commit that is under way, not for what else has gathered. An outbox in memory has no commit
to share: there every call stores its messages itself, and the buffer is for those that wait for room.

Calls wait for room in the order in which they came, and as many are woken as fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

from flyball.errors import FlyballError
from flyball.publisher.handle import Dropped, Handle, PublisherClosed
from flyball.publisher.relay import Relay
from flyball.store.protocol import DiskFull, Full, NeverFits, StoreError

log = logging.getLogger(__name__)

WhenFull: TypeAlias = Literal["wait", "error", "drop"]

_MAX_GROUP = 500
_MAX_GROUP_BYTES = 1 << 20
_LEAST_PART = 8
_RETRY_S = 0.05
_YIELD_EVERY = 64


class BufferFull(Full):
    """The receive buffer is full: messages come faster than the outbox stores them."""


class _Group:
    """Messages that are committed together."""

    __slots__ = ("bytes", "done", "handles")

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.bytes = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Intake:
    """Stores messages by way of `relay`, and applies `when_full` where there is no room."""

    def __init__(self, relay: Relay, *, capacity: int, when_full: WhenFull) -> None:
        self._relay, self._capacity, self._when_full = relay, capacity, when_full
        self._groups: deque[_Group] = deque()
        self._urgent: deque[_Group] = deque()
        self._buffered = 0
        """Messages in the buffer, and slots that were given to waiting calls."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Calls that wait for a slot in the buffer."""
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._writer: asyncio.Task[None] | None = None
        self._since_yield = 0
        self._closed = False
        self.dropped = 0
        self.refused = 0

    @property
    def buffered(self) -> int:
        return self._buffered

    async def accept(self, handles: Sequence[Handle]) -> None:
        """Return when all of them are safe, or refused (the handle then has the error)."""
        self._calls += 1
        self._idle.clear()
        try:
            if self._relay.in_memory:
                await self._accept_in_memory(handles)
            else:
                await self._accept_by_commit(handles)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no call is under way."""
        await self._idle.wait()

    async def close(self) -> None:
        """Let the commit under way end, and refuse what has not begun."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        for group in (*self._urgent, *self._groups):
            self._refuse_closed(group.handles)
            group.done.set_result(None)
        self._urgent.clear()
        self._groups.clear()
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _accept_in_memory(self, handles: Sequence[Handle]) -> None:
        if self._closed:
            self._refuse_closed(handles)
        elif self._when_full != "wait":
            await self._store(handles)
        elif self._writer is not None or not await self._fits(handles):
            await self._accept_by_commit(handles)
        self._since_yield += len(handles)
        if self._since_yield >= _YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)  # nothing else here lets other tasks of the event loop run

    async def _fits(self, handles: Sequence[Handle]) -> bool:
        """Store all of them if there is room."""
        try:
            await self._relay.store(handles)
        except Full:
            return False
        return True

    async def _accept_by_commit(self, handles: Sequence[Handle]) -> None:
        commits: list[asyncio.Future[None]] = []
        for at, handle in enumerate(handles):
            if self._buffered < self._capacity and not self._waiting:
                self._buffered += 1
            elif self._when_full == "wait":
                await self._wait_for_slot()
            else:
                self._refuse(handle, BufferFull(f"the receive buffer is full ({self._capacity} messages)"))
                continue
            if self._closed:
                self._refuse_closed(handles[at:])
                break
            group = self._add(handle)
            if not commits or commits[-1] is not group.done:
                commits.append(group.done)
        for done in commits:
            await asyncio.shield(done)

    async def _wait_for_slot(self) -> None:
        """Wait for a slot in the buffer, which then belongs to this call; or until this is closed."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled() and not self._closed:  # it got one in the same moment
                self._free(1)
            raise

    def _free(self, slots: int) -> None:
        """Give free slots to the calls that have waited longest."""
        self._buffered -= slots
        while self._waiting and self._buffered < self._capacity:
            slot = self._waiting.popleft()
            if not slot.done():  # else its call was cancelled
                self._buffered += 1
                slot.set_result(None)

    def _add(self, handle: Handle) -> _Group:
        groups = self._urgent if handle.urgency == 0 else self._groups
        group = groups[-1] if groups else None
        if group is None or len(group.handles) >= _MAX_GROUP or group.bytes >= _MAX_GROUP_BYTES:
            group = _Group()
            groups.append(group)
        group.handles.append(handle)
        group.bytes += handle.size_bytes
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        return group

    async def _write(self) -> None:
        try:
            while groups := self._urgent or self._groups:
                group = groups.popleft()
                try:
                    await self._store(group.handles)
                except Exception as error:  # whatever it is, nobody must wait for a commit that will not come
                    log.exception("storing messages failed in a way that no store error describes")
                    for handle in group.handles:
                        if not handle.accepted:
                            self._refuse(handle, StoreError(f"cannot be stored: {type(error).__name__}: {error}"))
                except BaseException:  # the event loop ends
                    self._refuse_closed([handle for handle in group.handles if not handle.accepted])
                    self._finish(group)
                    raise
                self._finish(group)
        finally:
            self._writer = None

    def _finish(self, group: _Group) -> None:
        self._free(len(group.handles))
        if not group.done.done():
            group.done.set_result(None)

    async def _store(self, handles: Sequence[Handle]) -> None:
        """Store all; where they do not fit together, as many as fit, and apply `when_full` to the others."""
        start, size, stored = 0, len(handles), 0
        while start < len(handles) and not self._closed:
            part = handles[start : start + size]
            try:
                await self._relay.store(part)
            except DiskFull as error:
                self._refuse_all(handles[start:], error)
                return
            except Full as error:
                if len(part) > 1:
                    size = _count_fitting(part, error.room_bytes)
                elif self._when_full == "wait" and not isinstance(error, NeverFits):
                    # Other processes may make room too, and this one does not learn of it: hence the time limit.
                    await self._relay.wait_for_space(_RETRY_S)
                    size, stored = max(_LEAST_PART, 2 * stored), 0  # as there was room for the last time
                else:
                    self._refuse(part[0], error)
                    start += 1
            except StoreError as error:
                self._refuse_all(handles[start:], error)
                return
            else:
                start += len(part)
                stored += len(part)
                size = 2 * len(part)
        if start < len(handles):
            self._refuse_closed(handles[start:])

    def _refuse_closed(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._refuse(
                handle,
                PublisherClosed(
                    f"the publisher closed before message {handle.id} was stored: it is not in the outbox"
                ),
            )

    def _refuse_all(self, handles: Sequence[Handle], error: StoreError) -> None:
        for handle in handles:
            self._refuse(handle, error)

    def _refuse(self, handle: Handle, error: FlyballError) -> None:
        if self._when_full == "drop" and isinstance(error, Full) and not isinstance(error, DiskFull):
            self.dropped += 1
            handle._fail(Dropped(f"message {handle.id} was dropped: {error}"))
        else:
            self.refused += 1
            handle._fail(error)


def _count_fitting(handles: Sequence[Handle], room_bytes: int) -> int:
    """How many of the first of these to try when not all fit: at least one, and fewer than all."""
    count = 0
    for handle in handles:
        room_bytes -= handle.size_bytes
        if room_bytes < 0:
            break
        count += 1
    if count == len(handles):  # their sizes are estimates
        return max(1, count // 2)
    return max(1, count)
