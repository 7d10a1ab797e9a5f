"""The receive side: a finite buffer of messages that wait to be safe in the outbox, written together.

Whoever publishes waits for the commit that holds its message. While one commit is under way the next one gathers,
so the busier it is the more messages share the wait for the disk, and a lone message waits for nobody. Urgent
messages wait for the commit that is under way, not for what else has gathered. An outbox in memory has no commit
to share: there every call stores its messages itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal, TypeAlias

from flyball.publisher.handle import Dropped, Handle
from flyball.publisher.relay import Relay
from flyball.store.protocol import DiskFull, Full, NeverFits, StoreError

log = logging.getLogger(__name__)

WhenFull: TypeAlias = Literal["wait", "error", "drop"]

_MAX_GROUP = 500
_MAX_GROUP_BYTES = 1 << 20
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
        self._writer: asyncio.Task[None] | None = None
        self._buffer_space = asyncio.Event()
        self._since_yield = 0
        self.dropped = 0
        self.refused = 0

    @property
    def buffered(self) -> int:
        return self._buffered

    async def accept(self, handles: Sequence[Handle]) -> None:
        """Return when all of them are safe, or refused (the handle then has the error)."""
        if self._relay.in_memory:
            self._since_yield += len(handles)
            if self._since_yield >= _YIELD_EVERY:
                self._since_yield = 0
                await asyncio.sleep(0)  # nothing else here lets other tasks of the event loop run
            await self._store(handles)
            return
        commits: list[asyncio.Future[None]] = []
        for handle in handles:
            while self._buffered >= self._capacity:
                if self._when_full != "wait":
                    self._refuse(handle, BufferFull(f"the receive buffer is full ({self._capacity} messages)"))
                    break
                self._buffer_space.clear()
                await self._buffer_space.wait()
            else:
                group = self._add(handle)
                if not commits or commits[-1] is not group.done:
                    commits.append(group.done)
        for done in commits:
            await asyncio.shield(done)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    def _add(self, handle: Handle) -> _Group:
        groups = self._urgent if handle.urgency == 0 else self._groups
        group = groups[-1] if groups else None
        if group is None or len(group.handles) >= _MAX_GROUP or group.bytes >= _MAX_GROUP_BYTES:
            group = _Group()
            groups.append(group)
        group.handles.append(handle)
        group.bytes += handle.size_bytes
        self._buffered += 1
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
                self._buffered -= len(group.handles)
                self._buffer_space.set()
                if not group.done.done():
                    group.done.set_result(None)
        finally:
            self._writer = None

    async def _store(self, handles: Sequence[Handle]) -> None:
        """Store all; where they do not fit together, as many as fit, and apply `when_full` to the others."""
        start, size = 0, len(handles)
        while start < len(handles):
            part = handles[start : start + size]
            try:
                await self._relay.store(part)
            except DiskFull as error:
                self._refuse_all(handles[start:], error)
                return
            except Full as error:
                if size > 1:
                    size = size // 2
                elif self._when_full == "wait" and not isinstance(error, NeverFits):
                    # Other processes may make room too, and this one does not learn of it: hence the time limit.
                    await self._relay.wait_for_space(_RETRY_S)
                else:
                    self._refuse(part[0], error)
                    start += 1
            except StoreError as error:
                self._refuse_all(handles[start:], error)
                return
            else:
                start += len(part)

    def _refuse_all(self, handles: Sequence[Handle], error: StoreError) -> None:
        for handle in handles:
            self._refuse(handle, error)

    def _refuse(self, handle: Handle, error: StoreError) -> None:
        if self._when_full == "drop" and isinstance(error, Full) and not isinstance(error, DiskFull):
            self.dropped += 1
            handle._fail(Dropped(f"message {handle.id} was dropped: {error}"))
        else:
            self.refused += 1
            handle._fail(error)
