"""Real local servers for tests, trials and the cluster's provisioner, and a proxy that injects network faults.

    rabbitmq   RabbitMQ nodes, each with its own ports and data
    kafka      a Kafka broker
    postgresql a PostgreSQL server, for a store that hosts share
    proxy      TCP proxy: delay, stall, cut, bandwidth limit
    local      the base of all servers: folder, kill, pause, restart
    ports      free ports of the loopback interface
    state      servers that outlive the command that started them

Everything listens on the loopback interface only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from flyball.errors import FlyballError


class ServerFailed(FlyballError, RuntimeError):
    """A local server did not start, or ended by itself; the message shows the end of its log."""


class ServerMissing(FlyballError, FileNotFoundError):
    """The program of a local server is not installed; the message names the command that installs it."""


class Server(Protocol):
    """Interface of every local server."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """URL for `flyball.brokers.connect`."""

    @property
    def urls(self) -> Mapping[str, str]:
        """All addresses by purpose; `url` is one of them."""

    @property
    def pids(self) -> Sequence[int]:
        """Pids of the live processes of this server."""

    def start(self) -> None:
        """Start and wait until it can be used."""

    def stop(self) -> None:
        """End it cleanly, with everything it started; no error if it is not running."""

    def detach(self) -> None:
        """Let it run on when this program ends."""

    def record(self) -> dict[str, object]:
        """Data (JSON) by which another process finds this server again."""
