"""The receive side: a finite buffer of messages that wait to be safe in the outbox, written together.

Whoever publishes waits for the commit that holds its message. While one commit is under way the next one gathers,
so the busier it is the more messages share the wait for the disk, and a lone message waits for nobody. Urgent
messages wait for the commit that is under way, not for what else has gathered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

from flyball.publisher.handle import Dropped, Handle
from flyball.publisher.memory_outbox import OutboxLike
from flyball.publisher.store_workers import WorkerPool
from flyball.store.protocol import DiskFull, Full, StoreError

log = logging.getLogger(__name__)

WhenFull: TypeAlias = Literal["wait", "error", "drop"]

_MOST_TOGETHER = 500
_MOST_BYTES_TOGETHER = 1 << 20
_RETRY_S = 0.05


class BufferFull(Full):
    """The receive buffer is full: messages come faster than the outbox takes them."""


class _Group:
    """Messages that are committed together."""

    __slots__ = ("bytes", "done", "handles")

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self.bytes = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Intake:
    """Writes to the outbox in groups; `on_accepted` is told of messages once they are safe.

    `accounting` is held from the commit until `on_accepted` has been told, so that whoever looks for messages
    of other writers never takes ours for theirs.
    """

    def __init__(
        self,
        outbox: OutboxLike,
        pool: WorkerPool,
        *,
        accounting: asyncio.Lock,
        capacity: int,
        when_full: WhenFull,
        on_accepted: Callable[[list[Handle], Sequence[int]], None],
    ) -> None:
        self._outbox, self._pool, self._accounting = outbox, pool, accounting
        self._capacity, self._when_full, self._on_accepted = capacity, when_full, on_accepted
        self._groups: deque[_Group] = deque()
        self._urgent: deque[_Group] = deque()
        self._buffered = 0
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self.short_of_room = False
        """Messages wait until something leaves the outbox."""
        self.dropped = 0
        self.refused = 0

    @property
    def buffered(self) -> int:
        return self._buffered

    async def accept(self, handles: Sequence[Handle]) -> None:
        """Return when all of them are safe, or refused (each then says so itself)."""
        waits: list[asyncio.Future[None]] = []
        for handle in handles:
            while self._buffered >= self._capacity:
                if self._when_full != "wait":
                    self._refuse(handle, BufferFull(f"the receive buffer holds {self._capacity} messages already"))
                    break
                self._room.clear()
                await self._room.wait()
            else:
                group = self._group(handle)
                if not waits or waits[-1] is not group.done:
                    waits.append(group.done)
        for done in waits:
            await asyncio.shield(done)

    def confirmed(self) -> None:
        """Something left the outbox: there may be room."""
        self._room.set()

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _group(self, handle: Handle) -> _Group:
        groups = self._urgent if handle.urgency == 0 else self._groups
        group = groups[-1] if groups else None
        if group is None or len(group.handles) >= _MOST_TOGETHER or group.bytes >= _MOST_BYTES_TOGETHER:
            group = _Group()
            groups.append(group)
        group.handles.append(handle)
        group.bytes += handle.size_bytes
        self._buffered += 1
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
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
                self._room.set()
                if not group.done.done():
                    group.done.set_result(None)
        finally:
            self._writing = None

    async def _store(self, handles: list[Handle]) -> None:
        """Append all; where they do not fit together, as many as fit, the others by `when_full`."""
        left = handles
        size = len(left)
        while left:
            head = left[:size]
            try:
                async with self._accounting:
                    seqs = await self._pool.run("receive", self._outbox.append, head)
                    self._on_accepted(head, seqs)
            except DiskFull as error:
                for handle in left:
                    self._refuse(handle, error)
                return
            except Full as error:
                if size > 1:
                    size = size // 2
                elif self._when_full == "wait":
                    await self._wait_for_room()
                else:
                    self._refuse(head[0], error)
                    left = left[1:]
                continue
            except StoreError as error:
                for handle in left:
                    self._refuse(handle, error)
                return
            left = left[len(head) :]

    async def _wait_for_room(self) -> None:
        self._room.clear()
        self.short_of_room = True
        with suppress(TimeoutError):
            # Other processes may make room too, and do not tell us.
            await asyncio.wait_for(self._room.wait(), _RETRY_S)
        self.short_of_room = False

    def _refuse(self, handle: Handle, error: StoreError) -> None:
        if self._when_full == "drop" and isinstance(error, Full) and not isinstance(error, DiskFull):
            self.dropped += 1
            handle._fail(Dropped(f"message {handle.id} was dropped: {error}"))
        else:
            self.refused += 1
            handle._fail(error)
