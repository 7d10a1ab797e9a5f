"""A member of a group: its session in the store, the queues that it is granted, and its part in the coordination.

Ranked goals: it reads nothing that somebody else may read; it reads what it owns without interruption; it reports
soon what it released.

Every `heartbeat_s` it reports to the store and applies the newest state; while queues change hands, five times as
often. If it cannot reach the store, it goes on reading until its session is about to expire; then it releases all
queues, so that nobody else has to wait for it, and joins again when the store is back. Where the broker itself
decides who reads (`switches`), it goes on reading instead: nobody can read beside it.

A member that finds a newer session under its own id stops for good (`Superseded`): two processes have the same id,
and would otherwise fence each other in turn.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from flyball.backoff import ENDLESS, delays_s
from flyball.errors import FlyballError
from flyball.groups.config import GroupConfig
from flyball.groups.coordinator import Coordinator
from flyball.groups.group_store import GroupStore, StoredState, candidate_name
from flyball.groups.owned_queues import OwnedQueues
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, Report, Stage
from flyball.groups.readers.port import QueueReaders
from flyball.store.host_time import host_time
from flyball.store.protocol import Database, StoreError
from flyball.store.sessions import Renewal
from flyball.store.url import open_database
from flyball.store.worker_pool import Side, WorkerPool

log = logging.getLogger("flyball.groups")

Result = TypeVar("Result")

_FASTER = 5
"""How much more often members look at the store while queues change hands."""


class Superseded(FlyballError, RuntimeError):
    """Another process has joined the group under the same member id."""


class GroupMember:
    """One member. `window` says how many messages it may have in flight: releases wait accordingly.

    `start` joins the group, `stop` releases the queues and leaves it; what happens between is in the background.
    """

    def __init__(
        self,
        config: GroupConfig,
        readers: QueueReaders,
        *,
        window: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = lambda: host_time().seconds,
    ) -> None:
        self.name = config.member or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._config, self._readers, self._window, self._clock = config, readers, window, clock
        self._queues = OwnedQueues(
            readers, window=window, release_timeout_s=config.release_timeout_s, changed=self._look_now
        )
        self._counts: dict[str, int | None] = dict(config.queue_counts)
        self._stage: Stage = "active"
        self._token = 0
        self._valid_until_s = 0.0
        self._known: StoredState | None = None
        self._hand_overs = HandOvers()
        self._look = asyncio.Event()
        self._stopping = asyncio.Event()
        self._giving_up: asyncio.Task[None] | None = None
        self._unreachable = False
        self._leads = False
        self._failure: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pool: WorkerPool | None = None
        self._database: Database | None = None

    @property
    def owned(self) -> dict[Queue, int]:
        """The queues that it reads, with their generations."""
        return self._queues.owned

    @property
    def leads(self) -> bool:
        """Whether it is the group's coordinator."""
        return self._leads

    @property
    def may_read(self) -> bool:
        """Whether its session lasts, by its own clock; False after a pause that was too long."""
        return self._readers.switches or self._clock() < self._valid_until_s

    async def start(self) -> None:
        """Join the group; raises what the broker or the store says if they cannot be used."""
        self._failure = asyncio.get_running_loop().create_future()
        await self._count_queues()
        self._pool = WorkerPool(2, user="group member")
        try:
            self._database = await self._pool.run("receive", self._open)
            self._store = GroupStore(self._database, self._config.name)
            await self._begin()
        except BaseException:
            await self._close()
            raise
        self._tasks = [
            asyncio.create_task(work()) for work in (self._keep_session, self._watch, self._lead, self._recount)
        ]
        for task in self._tasks:
            task.add_done_callback(self._note_failure)

    async def wait(self) -> None:
        """Wait until the member can no longer be in the group; raises `Superseded`, or an unexpected error."""
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def stop(self, *, leave: bool = False) -> None:
        """Release all queues and end. A member with an id of its own may return to them, unless `leave`."""
        self._stage = "leaving" if leave or self._config.member is None else "away"
        self._stopping.set()
        self._look_now()
        if self._tasks:
            _, *others = self._tasks
            await asyncio.gather(self._tasks[0], return_exceptions=True)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await self._close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- session ------------------------------------------------------------------------------------------------

    async def _keep_session(self) -> None:
        """Report until the member stops; begin another session when one was lost."""
        while True:
            outcome = await self._report()
            if outcome == "expired":
                await self._give_up("its session expired", 0.0)
                if self._stopping.is_set():
                    return
                await self._begin_again()
            elif outcome == "superseded" and not self._stopping.is_set():
                self._stage = "leaving"
                self._stopping.set()
                self._fail(
                    Superseded(
                        f"member {self.name!r} of group {self._config.name!r} was started again; "
                        "give every process its own member id"
                    )
                )
            elif self._stopping.is_set():
                if self._queues.leave() or not self.may_read:
                    await self._say_goodbye()
                    return
            elif outcome is not None:
                await self._apply()
            await self._pause()

    async def _report(self) -> Renewal | None:
        """Report to the store; None: it cannot be reached."""
        if not self.may_read:
            return "expired"
        called_s, report = self._clock(), self._make_report()
        self._look.clear()
        try:
            renewal = await self._call(
                self._store.renew, self.name, self._token, report, self._config.session_timeout_s
            )
        except StoreError as error:
            self._note_unreachable(error)
            return None
        self._note_reachable()
        if renewal == "renewed":
            self._valid_until_s = called_s + self._config.session_timeout_s
        return renewal

    async def _apply(self) -> None:
        """Follow the newest state."""
        try:
            self._known = await self._call(self._store.read, self._known)
        except StoreError as error:
            self._note_unreachable(error)
            return
        seen = self._known.state.tokens.get(self.name) == self._token
        if seen and self.may_read and not self._stopping.is_set():
            self._queues.follow(self._known.state.granted_to(self.name, self._token))

    async def _pause(self) -> None:
        settled = self._known is not None and self._known.state.settled and not self._stopping.is_set()
        interval_s = self._config.heartbeat_s / (1 if settled else _FASTER)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await self._look.wait()

    async def _begin(self) -> None:
        called_s = self._clock()
        self._hand_overs = self._readers.hand_overs
        self._token = await self._call(
            self._store.begin, self.name, self._make_report(), self._config.session_timeout_s
        )
        self._valid_until_s = called_s + self._config.session_timeout_s
        self._known = self._giving_up = None

    async def _begin_again(self) -> None:
        for delay_s in delays_s(ENDLESS, longest_s=self._config.heartbeat_s):
            try:
                await self._call(self._store.end, self.name, self._token)  # nobody has to wait until it expires
                await self._begin()
                self._note_reachable()
                return
            except StoreError as error:
                self._note_unreachable(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
                    return

    async def _give_up(self, why: str, deadline_s: float) -> None:
        """Release everything because the session is over, or nearly so."""
        if self._giving_up is None:
            log.warning("member %s of group %s releases its queues: %s", self.name, self._config.name, why)
            self._valid_until_s = min(self._valid_until_s, self._clock())
            self._giving_up = asyncio.create_task(self._queues.release_all(deadline_s))
        await asyncio.shield(self._giving_up)

    async def _say_goodbye(self) -> None:
        """The last report: nothing is owned any more."""
        with suppress(StoreError):
            await self._call(
                self._store.renew, self.name, self._token, self._make_report(), self._config.session_timeout_s
            )

    async def _watch(self) -> None:
        """Release everything shortly before the session expires, if it was not extended."""
        while True:
            guard_s = min(self._config.release_timeout_s, self._config.session_timeout_s / 3)
            left_s = self._valid_until_s - self._clock() - guard_s
            if left_s > 0 or self._readers.switches or not self._queues.owned:
                await asyncio.sleep(min(max(left_s, 0.05), self._config.heartbeat_s))
                continue
            deadline_s = max(0.0, left_s + 0.8 * guard_s)
            await self._give_up("it could not report for most of its session time-out", deadline_s)

    # --- coordination -------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Campaign, and make rounds while this member leads."""
        coordinator, complaint = self._make_coordinator(), ""
        try:
            while not self._stopping.is_set():
                if coordinator.candidate != self._candidate:
                    await self._resign(coordinator)
                    coordinator = self._make_coordinator()
                found = None
                try:
                    found = await self._call(coordinator.run_round, side="publish")
                    complaint = ""
                except Exception as error:  # noqa: BLE001 - a round that fails must not end the member
                    if str(error) != complaint and not self._unreachable:
                        complaint = str(error)
                        log.warning("a round of group %s failed: %s", self._config.name, error)
                self._leads = coordinator.leads
                if found is not None and (self._known is None or found.version != self._known.version):
                    self._look_now()
                busy = found is not None and not found.state.settled
                await asyncio.sleep(self._config.heartbeat_s / (_FASTER if busy else 1))
        finally:
            await self._resign(coordinator)

    @property
    def _candidate(self) -> str:
        return candidate_name(self.name, self._token)

    def _make_coordinator(self) -> Coordinator:
        return Coordinator(self._store, self._config.rules, self._candidate, ttl_s=self._config.session_timeout_s)

    async def _resign(self, coordinator: Coordinator) -> None:
        self._leads = False
        with suppress(StoreError):  # then the lease expires
            await self._call(coordinator.resign, side="publish")

    # --- parts --------------------------------------------------------------------------------------------------

    async def _recount(self) -> None:
        """Look from time to time how many queues the topics have."""
        while True:
            await asyncio.sleep(self._config.rebalance_s)
            try:
                await self._count_queues()
            except FlyballError as error:
                log.warning("the queues of group %s cannot be counted: %s", self._config.name, error)

    async def _count_queues(self) -> None:
        found = await self._readers.queues(self._config.queue_counts)
        self._counts = {topic: 1 + max(numbers, default=-1) for topic, numbers in found.items()}

    def _make_report(self) -> Report:
        counted = self._readers.hand_overs
        options = self._config.options
        return Report(
            topics=self._counts,
            owned=self._queues.owned,
            round=0 if self._known is None else self._known.state.round,
            stage=self._stage,
            rack=self._config.rack,
            window=self._window(),
            switches=self._readers.switches,
            loads=dict(self._readers.loads()),
            queues=frozenset((topic, number) for topic, numbers in options.queues.items() for number in numbers),
            hand_overs=HandOvers(counted.clean - self._hand_overs.clean, counted.forced - self._hand_overs.forced),
        )

    def _open(self) -> Database:
        # A call that waits longer than this could not extend the session any more.
        return open_database(self._config.store, answer_timeout_s=self._config.session_timeout_s / 2)

    async def _close(self) -> None:
        await self._queues.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            if self._database is not None:
                await pool.run("publish", self._database.close)
            await asyncio.to_thread(pool.close)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def _look_now(self) -> None:
        self._look.set()

    def _note_unreachable(self, error: StoreError) -> None:
        if not self._unreachable:
            self._unreachable = True
            log.warning("the store of group %s cannot be used, reading goes on: %s", self._config.name, error)

    def _note_reachable(self) -> None:
        if self._unreachable:
            self._unreachable = False
            log.warning("the store of group %s can be used again", self._config.name)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # whether somebody waits for it is up to the user

    async def _call(self, call: Callable[..., Result], *arguments: Any, side: Side = "receive") -> Result:
        if self._pool is None:
            raise StoreError("the member is not in its group")
        return await self._pool.run(side, call, *arguments)
