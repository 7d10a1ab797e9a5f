"""Real local servers for tests, trials and the cluster's provisioner, and a proxy that makes their network bad.

    rabbitmq   RabbitMQ nodes, as many as asked, each with its own ports and data
    kafka      a Kafka broker
    proxy      TCP proxy: delay, stall, cut, bandwidth limit
    local      what all of them share: folder, kill, pause, restart
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
    """What every local server can do, whatever it is."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """The URL to give to `flyball.brokers.connect`."""

    @property
    def urls(self) -> Mapping[str, str]:
        """All addresses by what they are for; `url` is one of them."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes that belong to this server and are alive."""

    def start(self) -> None:
        """Start and wait until it can be used."""

    def stop(self) -> None:
        """End it cleanly, with everything it started; no error if it is not running."""

    def record(self) -> dict[str, object]:
        """What must be remembered to find this server again from another process (JSON)."""
