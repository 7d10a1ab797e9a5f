"""Publishers and consumers at a site while a fault comes and goes, and what must hold afterwards.

`run_fault(site, fault, seed=…)` opens a `Publisher`, a `SyncPublisher`, an HTTP `Listener`, a `Publisher` with a
second target that has no fault, and a `Consumer` at a site of `flyball.testing.faults`, each with a channel of its
own, and lets them work before, during and after the fault. The seed chooses what may differ between runs: how long
the fault lasts, whether the consumer runs in a thread or belongs to a group, whether a publisher keeps an order,
whether it is left in the middle of the fault and opened again on its outbox, whether one target is enough. The
`FaultReport` says what does not hold:

* `lost`: accepted, and neither at the broker nor in the outbox; or sent to the consumer and never handled;
* `false_confirms`: confirmed, and not at the broker. Beside each queue a group is subscribed to what is sent
  there: a message is at the broker when the queue and the group have got it;
* `stuck`: who did not go on by itself within `patience_s` after the fault, which is over when the broker takes a
  message of a new client;
* `problems`: an error that no caller expects, and books that do not balance: accepted + from_outbox = confirmed +
  waiting + rejected in the counters, and no more missing from the file than was confirmed.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from flyball.brokers import Message, connect
from flyball.consumer.consumer import Consumer
from flyball.errors import FlyballError
from flyball.futures import wait_at_most
from flyball.publisher.handle import Handle
from flyball.publisher.http import Listener
from flyball.publisher.options import OrderingConfig, OutboxConfig
from flyball.publisher.publisher import Publisher
from flyball.publisher.sync import SyncHandle, SyncPublisher
from flyball.testing.crash import body_of, send_until_confirmed
from flyball.testing.faults import Fault, FaultSite

Face: TypeAlias = Literal["publisher", "sync", "listener", "two_targets", "consumer"]
FACES: tuple[Face, ...] = get_args(Face)

_HOLD_S: dict[Fault, tuple[float, float]] = {
    "freeze": (0.5, 4.0),
    "kill": (0.0, 1.0),
    "restart": (0.0, 0.1),
    "cut": (0.1, 2.0),
    "stall": (0.5, 3.0),
    "slow": (0.5, 2.0),
    "full": (0.5, 2.0),
    "alarm": (0.2, 2.0),
    "disk": (0.3, 2.0),
    "locked": (0.3, 2.0),
    "permission": (0.3, 2.0),
    "clock": (0.2, 1.0),
}
"""How long a fault lasts, at least and at most."""
_LONG_HOLD_S = (12.0, 30.0)
_LONG: tuple[Fault, ...] = ("freeze", "stall", "cut")
"""Some of these outlast the sessions and heartbeats of brokers."""
_LONG_PART = 0.1
_WORKERS = 8
_BEFORE = 20
_PAUSE_S = 0.05
_AUDIT_S = 0.1
_BUFFER = 4
"""Smaller than the number of workers, and the outbox is full after about a second: bounds have to hold."""
_OUTBOX_BYTES = 60_000
_GUARD_S = 120.0
"""Ends a run in which something never comes; nothing is judged by it."""
_QUIET_S = 20.0
_GROUP = "group"
"""Subscribed beside every queue, it gets a copy of each message; consumers may be members of it."""
_SECOND = "second target"


@dataclass
class FaultReport:
    """What a run found. `accepted` are messages that were accepted, or sent to the consumer."""

    site: str
    fault: Fault
    seed: int
    accepted: int = 0
    lost: list[str] = field(default_factory=list)
    false_confirms: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.lost or self.false_confirms or self.stuck or self.problems)

    def __str__(self) -> str:
        parts = [f"{self.fault} of {self.site}, seed {self.seed}: {self.accepted} accepted"]
        for name in ("lost", "false_confirms", "stuck", "problems"):
            found = getattr(self, name)
            if found:
                parts.append(f"{len(found)} {name.replace('_', ' ')}: {', '.join(found[:5])}")
        return "; ".join(parts)


def run_fault(
    site: FaultSite,
    fault: Fault,
    *,
    seed: int,
    folder: Path,
    faces: Sequence[Face] = FACES,
    patience_s: float = _GUARD_S,
    hold_s: float | None = None,
) -> FaultReport:
    """Run one fault, which lasts for `hold_s` (None: the seed chooses); `folder` is for outboxes.

    Raises `FaultUnavailable` where the site has no such fault.
    """
    site.check(fault)
    report = FaultReport(site.name, fault, seed)
    rng = random.Random(f"{site.name} {fault} {seed}")
    if hold_s is None:
        is_long = fault in _LONG and rng.random() < _LONG_PART
        hold_s = rng.uniform(*(_LONG_HOLD_S if is_long else _HOLD_S[fault]))
    try:
        asyncio.run(_run(site, fault, rng, site.folder or folder, report, faces, patience_s, hold_s))
    except Exception as error:  # noqa: BLE001 – the seed is in the report
        report.problems.append(f"the run ended with {type(error).__name__}: {error}")
    return report


async def _run(
    site: FaultSite,
    fault: Fault,
    rng: random.Random,
    folder: Path,
    report: FaultReport,
    faces: Sequence[Face],
    patience_s: float,
    hold_s: float,
) -> None:
    name = f"fault.{uuid.uuid4().hex[:8]}"
    subjects = [_subject(face, site, fault, f"{name}.{face}", folder, rng) for face in faces]
    works: list[asyncio.Task[None]] = []
    control = f"{name}.control"
    try:
        async with await connect(site.judge_url) as broker:
            await broker.declare(control, site.kind)
        await asyncio.gather(*(subject.open() for subject in subjects))
        works += [asyncio.create_task(subject.work()) for subject in subjects]
        report.problems += await _wait("begun", subjects, lambda each: each.progress >= _BEFORE, _GUARD_S)
        try:
            await asyncio.to_thread(site.begin, fault)
            await asyncio.gather(*(subject.on_begin() for subject in subjects))
            await asyncio.sleep(hold_s)
        finally:
            await asyncio.to_thread(site.end)
        await wait_at_most(_send_one(site.judge_url, control), _GUARD_S)
        await asyncio.gather(*(subject.on_end() for subject in subjects))
        report.stuck += await _wait("gone on", subjects, lambda each: each.went_on, patience_s)
        for subject in subjects:
            subject.stop()
        done, late = await asyncio.wait(works, timeout=_GUARD_S)
        report.problems += [f"a program raised {task.exception()!r}" for task in done if task.exception()]
        report.problems += ["a call has not ended"] * len(late)
        await asyncio.gather(*(_finish(subject, report) for subject in subjects))
        for subject in subjects:
            await subject.judge(report)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        await asyncio.gather(*(subject.close(report) for subject in subjects))
        await _delete(site.judge_url, control)
    for subject in subjects:
        subject.judge_closed(report)


async def _send_one(url: str, channel: str) -> None:
    """Send a message of a new client: the fault is over when the broker takes it."""
    while True:
        with suppress(FlyballError):
            async with await connect(url) as broker:
                (result,) = await (await broker.sender(channel)).send_batch([Message(b"")])
                if result.ok:
                    return
        await asyncio.sleep(_PAUSE_S)


async def _delete(url: str, channel: str) -> None:
    with suppress(FlyballError):
        async with await connect(url) as broker:
            await broker.delete(channel)


async def _wait(
    what: str, subjects: Sequence[_Subject], reached: Callable[[_Subject], bool], seconds: float
) -> list[str]:
    """Wait until all have reached something, at most so long; return those that have not, with what they say."""
    deadline = time.monotonic() + seconds
    while not all(map(reached, subjects)) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return [f"{each.face} has not {what} ({each.describe()})" for each in subjects if not reached(each)]


async def _finish(subject: _Subject, report: FaultReport) -> None:
    try:
        await wait_at_most(subject.finish(), _GUARD_S)
    except TimeoutError:
        report.problems.append(f"{subject.face} has not finished ({subject.describe()})")


def _subject(
    face: Face, site: FaultSite, fault: Fault, channel: str, folder: Path, rng: random.Random
) -> _Subject:
    if face == "consumer":
        # Clients of a broker in memory share an event loop.
        blocking = rng.random() < 0.5 and not site.url.startswith("memory")
        grouped = rng.random() < 0.5 or site.kind == "log"
        return _Consuming(site, channel, rng.randrange(5, 100), blocking=blocking, grouped=grouped)
    if face == "sync":
        return _SyncPublishing(site, channel, fault, folder)
    if face == "listener":
        return _Listening(site, channel, fault, folder)
    ordering = OrderingConfig("runs" if site.kind == "log" else None) if rng.random() < 0.5 else None
    reopens = rng.random() < 0.3
    if face == "two_targets":
        return _TwoTargets(site, channel, fault, folder, ordering, reopens=reopens, required=rng.randint(1, 2))
    return _Publishing(site, channel, fault, folder, ordering, reopens=reopens)


class _Subject:
    """One program under test, at a channel of its own."""

    face: Face

    def __init__(self, site: FaultSite, channel: str) -> None:
        self._site, self._channel = site, channel
        self._stopping = asyncio.Event()
        self._problems: list[str] = []

    @property
    def progress(self) -> int:
        """Messages that are at their end."""
        raise NotImplementedError

    @property
    def went_on(self) -> bool:
        """Whether it has done more than what was under way at the end of the fault."""
        raise NotImplementedError

    async def open(self) -> None:
        raise NotImplementedError

    async def work(self) -> None:
        """Until `stop`."""
        raise NotImplementedError

    async def on_begin(self) -> None:
        """The fault has begun."""

    async def on_end(self) -> None:
        """The fault is over."""

    def stop(self) -> None:
        self._stopping.set()

    async def finish(self) -> None:
        """Wait until all messages are at their end."""
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError

    async def judge(self, report: FaultReport) -> None:
        raise NotImplementedError

    async def close(self, report: FaultReport) -> None:
        """Close, and delete the channel."""
        try:
            await wait_at_most(self._close(), _GUARD_S)
        except Exception as error:  # noqa: BLE001 – it is what a run looks for
            report.problems.append(f"{self.face}: closing raised {type(error).__name__}: {error}")
        await _delete(self._site.judge_url, self._channel)

    async def _close(self) -> None:
        raise NotImplementedError

    def judge_closed(self, report: FaultReport) -> None:
        report.problems += list(dict.fromkeys(self._problems))[:5]


# --- what publishes ---------------------------------------------------------------------------------------------


class _Stored(NamedTuple):
    ids: set[str]
    size_bytes: int


class _PublishingSubject(_Subject):
    """Numbered messages from some tasks, and their books."""

    def __init__(self, site: FaultSite, channel: str, fault: Fault, folder: Path) -> None:
        super().__init__(site, channel)
        self._fault, self._outbox = fault, folder / f"{channel}.db"
        self._number = 0
        self._accepted: list[str] = []
        self._handles: dict[str, Handle | SyncHandle] = {}
        self._confirmed_before = 0  # by an earlier opening
        self._in_flight_goal = 0
        self._received: dict[str, set[str]] = {}  # ids, by who received them
        self._collectors: list[asyncio.Task[None]] = []
        # Calls that wait for room must not take the threads of others.
        self._threads = ThreadPoolExecutor(_WORKERS, f"{self.face}-worker")

    def _options(self) -> dict[str, Any]:
        return {
            "channel": self._channel,
            "outbox": OutboxConfig(self._outbox, _OUTBOX_BYTES),
            "buffer": _BUFFER,
        }

    @property
    def _publisher(self) -> Publisher | SyncPublisher:
        raise NotImplementedError

    async def _open(self) -> None:
        raise NotImplementedError

    async def _publish(self, id: str) -> bool:
        """Publish one message; return whether it was accepted."""
        raise NotImplementedError

    async def open(self) -> None:
        async with await connect(self._site.judge_url) as broker:
            await broker.declare(
                self._channel, self._site.kind, max_bytes=self._site.declare_options(self._fault).get("max_bytes")
            )
            if self._site.kind == "queue":
                await (await broker.subscribe(self._channel, _GROUP)).close()
        await self._open()

    async def work(self) -> None:
        await asyncio.gather(*(self._publish_all() for _ in range(_WORKERS)), self._audit())

    async def _publish_all(self) -> None:
        while not self._stopping.is_set():
            self._number += 1
            id = f"{self.face}-{self._number:08d}"
            try:
                accepted = await self._publish(id)
            except (
                FlyballError
            ):  # the store is locked or full, the publisher is being opened again: the caller knows
                accepted = False
            except Exception as error:  # noqa: BLE001 – it is what a run looks for
                self._problems.append(f"{self.face}: publish raised {type(error).__name__}: {error}")
                accepted = False
            if accepted:
                self._accepted.append(id)
            await asyncio.sleep(_PAUSE_S if accepted else 2 * _PAUSE_S)

    async def _audit(self) -> None:
        while not self._stopping.is_set():
            await asyncio.sleep(_AUDIT_S)
            accepted = list(self._accepted)
            stored = await asyncio.to_thread(self._read_outbox)
            if stored is None:
                continue
            missing, confirmed = set(accepted) - stored.ids, self._confirmed
            if len(missing) > confirmed:
                self._problems.append(
                    f"{self.face}: {len(missing)} accepted messages are not in the file, {confirmed} are confirmed"
                )
            if stored.size_bytes > _OUTBOX_BYTES:
                self._problems.append(f"{self.face}: {stored.size_bytes} bytes in an outbox of {_OUTBOX_BYTES}")
            self._check_counts()

    def _read_outbox(self) -> _Stored | None:
        """What is in the outbox file, dead letters included; None: it cannot be read at the moment."""
        try:
            connection = sqlite3.connect(f"file:{self._outbox}?mode=ro", uri=True, timeout=5.0)
            try:
                tables = connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'flyball_outbox%'"
                ).fetchall()
                ids: set[str] = set()
                for (table,) in tables:
                    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                    if {"id", "body"} <= columns:
                        ids.update(id for (id,) in connection.execute(f"SELECT id FROM {table}"))
                (size_bytes,) = connection.execute("SELECT bytes FROM flyball_outbox_total").fetchone()
                return _Stored(ids, size_bytes)
            finally:
                connection.close()
        except sqlite3.Error:
            return None

    @property
    def _confirmed(self) -> int:
        return self._confirmed_before + self._publisher.stats.confirmed

    def _check_counts(self) -> None:
        stats = self._publisher.stats
        if stats.accepted + stats.from_outbox != stats.confirmed + stats.waiting + stats.rejected:
            self._problems.append(f"{self.face}: the counters do not balance: {stats.counts()}")
        if stats.buffered > _BUFFER:
            self._problems.append(f"{self.face}: {stats.buffered} messages in a buffer of {_BUFFER}")

    @property
    def progress(self) -> int:
        return self._confirmed

    async def on_end(self) -> None:
        # Not the whole backlog: how long that takes is a question of speed.
        self._in_flight_goal = self._confirmed + self._publisher.stats.in_flight
        if self._site.kind == "queue":
            self._collect_from(self._site.judge_url, self._site.kind)
            self._collect_from(self._site.judge_url, _GROUP, group=_GROUP)

    @property
    def went_on(self) -> bool:
        return self._confirmed > self._in_flight_goal

    async def finish(self) -> None:
        while self._publisher.stats.waiting:
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        counts = {name: count for name, count in self._publisher.stats.counts().items() if count}
        return f"{counts}, {'; '.join(self._publisher.problems) or 'no problem reported'}"

    def _collect_from(self, url: str, name: str, *, group: str | None = None) -> None:
        """Receive what is in the queue, or what the group gets, until the run ends."""
        ids = self._received[name] = set()
        self._collectors.append(asyncio.create_task(self._collect(url, group, ids)))

    async def _collect(self, url: str, group: str | None, ids: set[str]) -> None:
        while True:
            # A file may be locked, and so it may not be opened, by others that work on.
            with suppress(FlyballError):
                async with await connect(url) as broker:
                    if group is None:
                        receiver = await broker.receiver(self._channel, window=1000)
                    else:
                        receiver = await broker.subscribe(self._channel, group, window=1000)
                    while True:
                        deliveries = await receiver.receive(1000, timeout_s=0.2)
                        for delivery in deliveries:
                            self._receive(delivery.message, ids)
                        await receiver.ack(*deliveries)
            await asyncio.sleep(_PAUSE_S)

    async def _read_log(self, url: str, name: str) -> None:
        ids = self._received[name] = set()
        async with await connect(url) as broker:
            first, end = await broker.bounds(self._channel, 0)
            async for records in broker.read(self._channel, 0, first, end):
                for record in records:
                    self._receive(record.message, ids)

    def _receive(self, message: Message, ids: set[str]) -> None:
        ids.add(message.id)
        if message.body != body_of(message.id):
            self._problems.append(f"{self.face}: {message.id} arrived with another content")

    def _missing(self, ids: Iterable[str]) -> list[str]:
        """Those of the ids that somebody has not received, and who."""
        expected = set(ids)
        if not self._received:
            return sorted(expected)
        return [f"{id} in the {name}" for name, got in self._received.items() for id in sorted(expected - got)]

    async def _read_logs(self) -> None:
        await self._read_log(self._site.judge_url, self._site.kind)

    async def judge(self, report: FaultReport) -> None:
        if not self._collectors:
            await self._read_logs()
        else:
            quiet_since_s, count = time.monotonic(), -1
            while self._missing(self._accepted) and time.monotonic() < quiet_since_s + _QUIET_S:
                received = sum(map(len, self._received.values()))
                if received != count:
                    quiet_since_s, count = time.monotonic(), received
                await asyncio.sleep(0.02)
            for collector in self._collectors:
                collector.cancel()
            for ended in await asyncio.gather(*self._collectors, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    self._problems.append(f"{self.face}: receiving what was sent ended with {ended!r}")
        self._check_counts()
        report.false_confirms += self._missing(id for id, handle in self._handles.items() if handle.is_confirmed)
        report.accepted += len(self._accepted)

    def judge_closed(self, report: FaultReport) -> None:
        super().judge_closed(report)
        stored = self._read_outbox()
        report.lost += self._missing(set(self._accepted) - (set() if stored is None else stored.ids))
        for file in self._outbox.parent.glob(f"{self._outbox.name}*"):
            file.unlink()
        self._threads.shutdown(wait=False)


class _Publishing(_PublishingSubject):
    """`Publisher`; with `reopens`, an error leaves it in the middle of the fault, and it is opened again."""

    face: Face = "publisher"

    def __init__(
        self,
        site: FaultSite,
        channel: str,
        fault: Fault,
        folder: Path,
        ordering: OrderingConfig | None,
        *,
        reopens: bool,
    ) -> None:
        super().__init__(site, channel, fault, folder)
        self._ordering, self._reopens = ordering, reopens

    def _where(self) -> dict[str, Any]:
        return {"url": self._site.url}

    async def _open(self) -> None:
        publisher = Publisher(ordering=self._ordering, **self._where(), **self._options())
        await publisher.__aenter__()
        self._current = publisher

    @property
    def _publisher(self) -> Publisher:
        return self._current

    async def _publish(self, id: str) -> bool:
        self._handles[id] = handle = await self._current.publish(body_of(id), id=id)
        return handle.accepted

    async def on_begin(self) -> None:
        if self._reopens:
            await self._current.__aexit__(RuntimeError, RuntimeError("the program failed"), None)

    async def on_end(self) -> None:
        if self._reopens:
            self._confirmed_before = self._current.stats.confirmed
            await self._open()
        await super().on_end()

    async def _close(self) -> None:
        await self._current.__aexit__(None, None, None)


class _TwoTargets(_Publishing):
    """`Publisher` with a second target, a broker in memory without a fault; `required` of the two must confirm."""

    face: Face = "two_targets"

    def __init__(
        self,
        site: FaultSite,
        channel: str,
        fault: Fault,
        folder: Path,
        ordering: OrderingConfig | None,
        *,
        reopens: bool,
        required: int,
    ) -> None:
        super().__init__(site, channel, fault, folder, ordering, reopens=reopens)
        self._required = required
        self._second = f"memory://{uuid.uuid4().hex}"
        self._first_goal = 0

    def _where(self) -> dict[str, Any]:
        return {"targets": [self._site.url, self._second], "required_confirms": self._required}

    async def open(self) -> None:
        self._memory = await connect(self._second)
        await self._memory.declare(self._channel, self._site.kind)
        await super().open()

    async def on_end(self) -> None:
        await super().on_end()
        if self._site.kind == "queue":
            self._collect_from(self._second, _SECOND)
        first = self._current.stats.targets[0]
        self._first_goal = first.confirmed + first.in_flight

    @property
    def went_on(self) -> bool:
        return super().went_on and self._current.stats.targets[0].confirmed > self._first_goal

    async def finish(self) -> None:
        await super().finish()
        # What one target was enough for: the other one gets it, too.
        while any(target.pending + target.in_flight for target in self._current.stats.targets):
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        return f"{super().describe()}, {self._current.stats.targets[0]}"

    async def _read_logs(self) -> None:
        await super()._read_logs()
        await self._read_log(self._second, _SECOND)

    def _missing(self, ids: Iterable[str]) -> list[str]:
        if self._required > 1 or not self._reopens:
            return super()._missing(ids)
        # What one target had confirmed when the program failed, the other one need not get.
        first = set.intersection(*(got for name, got in self._received.items() if name != _SECOND))
        return [f"{id} at both targets" for id in sorted(set(ids) - first - self._received[_SECOND])]

    async def _close(self) -> None:
        await super()._close()
        await self._memory.close()


class _SyncPublishing(_PublishingSubject):
    """`SyncPublisher`, called from threads."""

    face: Face = "sync"

    async def _open(self) -> None:
        self._sync = SyncPublisher(self._site.url, **self._options())
        await asyncio.to_thread(self._sync.__enter__)

    @property
    def _publisher(self) -> SyncPublisher:
        return self._sync

    async def _publish(self, id: str) -> bool:
        call = partial(self._sync.publish, body_of(id), id=id)
        self._handles[id] = handle = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        return handle.accepted

    async def _close(self) -> None:
        await asyncio.to_thread(self._sync.__exit__, None, None, None)


class _Listening(_PublishingSubject):
    """`Listener`: status 202 is a promise, 503 is none."""

    face: Face = "listener"

    async def _open(self) -> None:
        self._behind = Publisher(self._site.url, when_full="error", **self._options())
        await self._behind.__aenter__()
        self._listener = Listener(self._behind)
        await self._listener.__aenter__()

    @property
    def _publisher(self) -> Publisher:
        return self._behind

    async def _publish(self, id: str) -> bool:
        loop = asyncio.get_running_loop()
        status = await loop.run_in_executor(self._threads, _post, self._listener.port, id)
        if status not in (202, 503):
            self._problems.append(f"{self.face}: status {status} for a message that is in order")
        return status == 202

    async def _close(self) -> None:
        await self._listener.__aexit__(None, None, None)
        await self._behind.__aexit__(None, None, None)


def _post(port: int, id: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_GUARD_S)
    try:
        connection.request("POST", "/publish", body_of(id), {"X-Message-Id": id})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


# --- what consumes ----------------------------------------------------------------------------------------------


class _Consuming(_Subject):
    """`Consumer`; its messages are sent beside the faults of the network, again until they are confirmed.

    With `blocking` it runs in a thread (`run_blocking`), and its handler is a plain function. With `grouped` it is
    a member of a group, as it has to be at a log.
    """

    face: Face = "consumer"

    def __init__(self, site: FaultSite, channel: str, window: int, *, blocking: bool, grouped: bool) -> None:
        super().__init__(site, channel)
        self._window, self._blocking, self._grouped = window, blocking, grouped
        self._number = 0
        self._sent: list[str] = []
        self._handled: set[str] = set()
        self._sent_until_end: int | None = None

    async def open(self) -> None:
        self._broker = await connect(self._site.judge_url)
        await self._broker.declare(self._channel, self._site.kind)
        self._sender = await self._broker.sender(self._channel)
        where: dict[str, Any] = {"queue": self._channel}
        if self._grouped:
            where = {"channel": self._channel, "group": _GROUP}
            if self._site.kind == "queue":  # a group of a queue gets what is sent from now on
                await (await self._broker.subscribe(self._channel, _GROUP)).close()
        handler = self._handle if self._blocking else self._handle_async
        self._consumer = Consumer(self._site.url, handler=handler, window=self._window, **where)
        if self._blocking:
            loop, self._threads = asyncio.get_running_loop(), ThreadPoolExecutor(1, "consumer")
            self._running = loop.run_in_executor(self._threads, self._consumer.run_blocking)
        else:
            await self._consumer.__aenter__()

    async def _handle_async(self, message: Message) -> None:
        self._handle(message)

    def _handle(self, message: Message) -> None:
        if message.body != body_of(message.id):
            self._problems.append(f"{self.face}: {message.id} arrived with another content")
        self._handled.add(message.id)

    async def work(self) -> None:
        while not self._stopping.is_set():
            ids = [f"{self.face}-{number:08d}" for number in range(self._number, self._number + 5)]
            self._number += len(ids)
            async for confirmed in send_until_confirmed(self._sender, ids, len(ids)):
                self._sent += confirmed
                if not confirmed:
                    await asyncio.sleep(2 * _PAUSE_S)
            await asyncio.sleep(_PAUSE_S)

    @property
    def progress(self) -> int:
        return len(self._handled)

    async def on_end(self) -> None:
        self._sent_until_end = len(self._sent) + 5

    @property
    def went_on(self) -> bool:
        return not self._handled.isdisjoint(self._sent[self._sent_until_end :])

    async def finish(self) -> None:
        while not set(self._sent) <= self._handled:
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        return f"sent {len(self._sent)}, {len(self._handled)} of them handled, {self._consumer.stats}"

    async def judge(self, report: FaultReport) -> None:
        report.lost += sorted(set(self._sent) - self._handled)
        report.accepted += len(self._sent)
        if self._consumer.stats.dead_lettered:
            self._problems.append(f"{self.face}: {self._consumer.stats.dead_lettered} became dead letters")

    async def _close(self) -> None:
        if self._blocking:
            self._consumer.stop()
            await self._running
            self._threads.shutdown()
        else:
            await self._consumer.__aexit__(None, None, None)
        await self._broker.close()
