"""Faults of a real broker behind one interface, whatever the broker is.

A *site* is a broker that may be harmed, and the faults that it knows:

    with kafka_site() as site:
        site.begin("freeze")
        ...                                  # clients use site.url
        site.end()

Clients under test use `url`, which leads through a proxy where there is a network; `judge_url` avoids the proxy
and is for whoever looks at what the broker holds. The sites of Flyball's own adapters are below. A site of another
adapter is put together from the same parts:

    FaultSite("mine", "queue", url, judge_url, {**server_faults(server), **network_faults(proxy)})

`fault_runs` publishes and consumes at a site while a fault comes and goes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args
from unittest.mock import patch

from flyball.brokers import connect
from flyball.brokers.port import Kind
from flyball.errors import InvalidValue
from flyball.servers.kafka import KafkaPorts, KafkaServer
from flyball.servers.ports import LOOPBACK
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.crash import Killable

Fault: TypeAlias = Literal[
    "freeze", "kill", "restart", "cut", "stall", "slow", "full", "alarm", "disk", "locked", "permission", "clock"
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

Action: TypeAlias = tuple[Callable[[], object], Callable[[], object]]
"""What begins a fault, and what ends it."""

QUEUE_BYTES = 20_000
"""Limit of a queue that has to become full."""
_SLOW_BYTES_PER_S = 30_000.0
_SLOW_DELAY_S = 0.05
_CLOCK_STEP_S = 3600.0
_DISK_BYTES = 64 << 20


class FaultUnavailable(InvalidValue):
    """This site cannot have this fault; the message says why."""


class Harmable(Killable, Protocol):
    """A server that can be killed, suspended and restarted, such as those of `flyball.servers`."""

    def restart(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass
class FaultSite:
    """A broker that may be harmed. `actions` are its faults, `reasons` say why others are not among them."""

    name: str
    kind: Kind
    url: str
    judge_url: str
    actions: Mapping[Fault, Action]
    reasons: Mapping[Fault, str] = field(default_factory=dict)
    proxies: Sequence[FaultProxy] = ()
    folder: Path | None = None
    """A folder that the fault `disk` fills; outboxes belong there, too."""
    _fault: Fault | None = field(default=None, init=False)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in FAULTS if fault in self.actions)

    @property
    def connections_made(self) -> int:
        """Connections of clients since the site exists, also those that have ended."""
        return sum(proxy.connections_made for proxy in self.proxies)

    def check(self, fault: Fault) -> None:
        """Raise `FaultUnavailable`, with the reason, if this site cannot have the fault."""
        if fault not in self.actions:
            reason = self.reasons.get(fault, "nothing of this broker corresponds to it")
            raise FaultUnavailable(f"{self.name} has no fault {fault!r}: {reason}")

    def begin(self, fault: Fault) -> None:
        """Begin a fault; it lasts until `end`. Blocks until it acts."""
        self.check(fault)
        if self._fault is not None:
            raise InvalidValue(f"the fault {self._fault!r} of {self.name} has not ended: call end() first")
        self._fault = fault
        self.actions[fault][0]()

    def end(self) -> None:
        """End the fault, if there is one. Blocks until the broker can be used."""
        fault, self._fault = self._fault, None
        if fault is not None:
            self.actions[fault][1]()

    def declare_options(self, fault: Fault) -> dict[str, int]:
        """Further arguments of `declare` for the channel that a fault is to act on."""
        return {"max_bytes": QUEUE_BYTES} if fault == "full" else {}


# --- parts of sites ---------------------------------------------------------------------------------------------


def nothing() -> None:
    """The end of a fault that is over when its begin returns, or that the run itself causes."""


def server_faults(server: Harmable) -> dict[Fault, Action]:
    """Suspended (SIGSTOP), killed (-9) and started again, restarted in order."""
    return {
        "freeze": (server.pause, server.resume),
        "kill": (server.kill, server.start),
        "restart": (server.restart, nothing),
    }


def network_faults(*proxies: FaultProxy) -> dict[Fault, Action]:
    """Connections cut and refused, stalled without an end, slow."""

    def each(*calls: Callable[[FaultProxy], object]) -> Callable[[], None]:
        def act() -> None:
            for call in calls:
                for proxy in proxies:
                    call(proxy)

        return act

    return {
        "cut": (each(FaultProxy.refuse, FaultProxy.cut), each(FaultProxy.accept)),
        "stall": (each(FaultProxy.stall), each(FaultProxy.flow)),
        "slow": (
            each(
                lambda proxy: proxy.set_bandwidth(_SLOW_BYTES_PER_S), lambda proxy: proxy.set_delay(_SLOW_DELAY_S)
            ),
            each(lambda proxy: proxy.set_bandwidth(None), lambda proxy: proxy.set_delay(0.0)),
        ),
    }


def queue_faults() -> dict[Fault, Action]:
    """A full queue: it is declared with a limit, and nobody receives from it until the fault is over."""
    return {"full": (nothing, nothing)}


def clock_faults(step_s: float = _CLOCK_STEP_S) -> dict[Fault, Action]:
    """The wall clock of this process goes ahead by `step_s`, and later back; the monotonic clock does not."""
    exact = time.time
    stepped = patch.object(time, "time", lambda: exact() + step_s)
    return {"clock": (stepped.start, stepped.stop)}


def file_faults(path: Path) -> tuple[dict[Fault, Action], dict[Fault, str]]:
    """A SQLite file that another program keeps locked, or that must not be written; and what is not available."""
    actions: dict[Fault, Action] = {"locked": _lock_action(path)}
    reason = _no_immutable_files(path.parent)
    if reason is None:
        actions["permission"] = (lambda: _set_immutable(path, True), lambda: _set_immutable(path, False))
    return actions, {} if reason is None else {"permission": reason}


def disk_faults(folder: Path) -> dict[Fault, Action]:
    """The disk of `folder` is full. The folder must have a small file system of its own (`small_disk`)."""
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            piece = bytes(1 << 16)
            while piece:
                try:
                    file.write(piece)
                except OSError:
                    piece = piece[: len(piece) // 2]

    return {"disk": (fill, filler.unlink)}


def _lock_action(path: Path) -> Action:
    holders: list[sqlite3.Connection] = []

    def lock() -> None:
        connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
        connection.execute("BEGIN IMMEDIATE")
        holders.append(connection)

    def unlock() -> None:
        holder = holders.pop()
        holder.execute("ROLLBACK")
        holder.close()

    return lock, unlock


def _set_immutable(path: Path, on: bool) -> None:
    # Permissions mean nothing to root, and nothing to files that are open: the attribute stops both.
    files = [each for each in (path, path.with_name(path.name + "-wal")) if each.exists()]
    subprocess.run(["chattr", "+i" if on else "-i", *map(str, files)], check=True, capture_output=True)


def _no_immutable_files(folder: Path) -> str | None:
    """Why files of this folder cannot be made immutable; None: they can."""
    probe = folder / f"probe-{uuid.uuid4().hex[:8]}"
    probe.touch()
    try:
        _set_immutable(probe, True)
        with probe.open("ab") as file:
            file.write(b"x")
    except PermissionError:
        return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"chattr +i does not work in {folder} ({error})"
    finally:
        subprocess.run(["chattr", "-i", str(probe)], check=False, capture_output=True)
        probe.unlink()
    return f"chattr +i has no effect in {folder}"


@contextmanager
def small_disk(folder: Path, size_bytes: int = _DISK_BYTES) -> Iterator[str | None]:
    """Mount a small file system in `folder`; the reason if that is not possible, and the folder is as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        yield "a small file system can only be mounted by root"
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "flyball-faults", str(folder)]
    try:  # a signal may come while it is being mounted
        answer = subprocess.run(mount, check=False, capture_output=True, text=True)
        refused = f"a small file system cannot be mounted here: {answer.stderr.strip()}"
        yield refused if answer.returncode else None
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


# --- the sites of Flyball's adapters ----------------------------------------------------------------------------


@contextmanager
def memory_site() -> Iterator[FaultSite]:
    url = f"memory://{uuid.uuid4().hex}?blocked_timeout_s=0.5"
    yield FaultSite("memory", "queue", url, url, {**queue_faults(), **clock_faults()})


@contextmanager
def sqlite_site(folder: Path) -> Iterator[FaultSite]:
    """A file on a small disk of its own, if that can be had."""
    with small_disk(folder) as no_disk:
        path = folder / "broker.db"
        url = f"sqlite:///{path}?busy_timeout_s=0.3&blocked_timeout_s=0.5"
        asyncio.run(_touch(url))
        actions: dict[Fault, Action] = {**queue_faults(), **clock_faults()}
        of_file, reasons = file_faults(path)
        actions |= of_file
        if no_disk is None:
            actions |= disk_faults(folder)
        else:
            reasons["disk"] = no_disk
        yield FaultSite("sqlite", "queue", url, url, actions, reasons, folder=folder)


@contextmanager
def start_own_rabbitmq(version: int | None = None) -> Iterator[RabbitMqNode]:
    """A node that may be killed at any time: it has had a stream for a moment (before that it forgets streams)."""
    with RabbitMqNode(version=version) as node:
        asyncio.run(_declare_first_log(node.stream_url))
        node.await_registered("rabbit_stream_coordinator")
        yield node


@contextmanager
def rabbitmq_site(node: RabbitMqNode, name: str = "rabbitmq") -> Iterator[FaultSite]:
    """Queues of a node of `start_own_rabbitmq`."""
    with FaultProxy(node.ports.amqp) as proxy:
        url = f"amqp://guest:guest@{LOOPBACK}:{proxy.port}/"
        actions = {**queue_faults(), **_rabbitmq_faults(node, proxy)}
        yield FaultSite(name, "queue", url, node.amqp_url, actions, proxies=(proxy,))


@contextmanager
def stream_site(node: RabbitMqNode, name: str = "rabbitmq_stream") -> Iterator[FaultSite]:
    """Streams of a node of `start_own_rabbitmq`; groups keep their state in queues, hence two proxies."""
    with FaultProxy(node.ports.stream) as streams, FaultProxy(node.ports.amqp) as queues:
        url = f"rabbitmq-stream://guest:guest@{LOOPBACK}:{streams.port}/?amqp_port={queues.port}"
        actions = _rabbitmq_faults(node, streams, queues)
        reasons: dict[Fault, str] = {"full": "a full log drops its oldest records"}
        yield FaultSite(name, "log", url, node.stream_url, actions, reasons, (streams, queues))


@contextmanager
def kafka_site() -> Iterator[FaultSite]:
    """A Kafka broker that sends its clients through a proxy; raises `ServerMissing` where there is no Kafka."""
    ports = KafkaPorts.free()
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(ports.client))
        # A client connects to where the broker says that it is.
        advertised = f"CLIENT://{LOOPBACK}:{proxy.port},INTERNAL://{LOOPBACK}:{ports.internal}"
        server = KafkaServer(ports=ports, fixed_ports=True, settings={"advertised.listeners": advertised})
        stack.enter_context(server)
        yield FaultSite(
            "kafka",
            "log",
            f"kafka://{LOOPBACK}:{proxy.port}/",
            f"kafka://{LOOPBACK}:{ports.internal}/",
            {**server_faults(server), **network_faults(proxy), **clock_faults()},
            {"full": "a full log drops its oldest records", "alarm": "Kafka has no memory alarm"},
            proxies=(proxy,),
        )


def _rabbitmq_faults(node: RabbitMqNode, *proxies: FaultProxy) -> dict[Fault, Action]:
    network = network_faults(*proxies)
    cut, join = network["cut"]

    def revoke() -> None:
        node.control("clear_permissions", "guest")
        cut()  # a connection keeps the permissions that it has asked for
        join()

    return {
        **server_faults(node),
        **network,
        **clock_faults(),
        "alarm": (lambda: node.set_memory_alarm(True), lambda: node.set_memory_alarm(False)),
        "permission": (revoke, lambda: node.control("set_permissions", "guest", ".*", ".*", ".*")),
    }


async def _touch(url: str) -> None:
    async with await connect(url):
        pass


async def _declare_first_log(url: str) -> None:
    async with await connect(url) as broker:
        await broker.declare("first", "log")
