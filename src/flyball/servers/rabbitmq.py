"""A real RabbitMQ node on this machine, separate from any other node.

Each node has its own name, ports, data, log, plugins file, cookie and port mapper (epmd), all in one folder, so
that any number of them run side by side, as root or as anybody, and nothing is left when they stop. The server's
own script is called, not the distribution's wrapper around it, which insists on one system-wide account.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flyball.processes.process import OwnProcess, tail
from flyball.servers import ServerFailed, ServerMissing, rabbitmq_packages
from flyball.servers.local import LocalServer
from flyball.servers.ports import LOOPBACK, accepts, free_ports

PLUGINS = ("rabbitmq_management", "rabbitmq_stream", "rabbitmq_shovel", "rabbitmq_shovel_management")
_SCRIPTS = rabbitmq_packages.SCRIPTS  # Debian and Ubuntu; elsewhere the scripts are on the PATH
_WATERMARK = 0.4  # RabbitMQ's default share of the memory
_START_S = 120.0
# One scheduler, and no busy waiting: idle nodes must not take the processor from what is measured beside them.
_ERLANG_FLAGS = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a TLS listener."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Ports:
    amqp: int
    amqps: int
    distribution: int
    epmd: int
    management: int
    stream: int
    prometheus: int
    stream_tls: int

    @classmethod
    def free(cls, amqp: int | None = None) -> Ports:
        """Choose free ports; `amqp` may be given."""
        chosen = free_ports(8)
        return cls(*chosen) if amqp is None else cls(amqp, *chosen[1:])


@dataclass(slots=True)
class RabbitMqNode(LocalServer):
    """One node, with plugins and TLS as configured."""

    plugins: Sequence[str] = PLUGINS
    tls: TlsFiles | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    """Further lines of rabbitmq.conf."""
    ports: Ports = field(default_factory=Ports.free)
    version: int | None = None
    """Major version; None: the one that is installed."""
    _epmd: OwnProcess | None = field(default=None, init=False, repr=False)

    @property
    def amqp_url(self) -> str:
        """URL without our own options, so that any AMQP program can use it."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.ports.amqp}/"

    @property
    def amqps_url(self) -> str:
        return f"amqps://guest:guest@localhost:{self.ports.amqps}/"

    @property
    def stream_url(self) -> str:
        managed = f"&management={self.ports.management}" if "rabbitmq_management" in self.plugins else ""
        return (
            f"rabbitmq-stream://guest:guest@{LOOPBACK}:{self.ports.stream}/?amqp_port={self.ports.amqp}{managed}"
        )

    @property
    def stream_tls_url(self) -> str:
        """URL with TLS, also for AMQP, which groups use for their state."""
        return (
            f"rabbitmq-stream://guest:guest@localhost:{self.ports.stream_tls}/?tls=1&amqp_port={self.ports.amqps}"
        )

    @property
    def management_url(self) -> str:
        return f"http://guest:guest@{LOOPBACK}:{self.ports.management}"

    @property
    def url(self) -> str:
        managed = "rabbitmq_management" in self.plugins
        return self.amqp_url + (f"?management={self.ports.management}" if managed else "")

    @property
    def urls(self) -> dict[str, str]:
        offered = {"amqp": self.url}
        if self.tls is not None:
            offered["amqps"] = self.amqps_url
        if "rabbitmq_stream" in self.plugins:
            offered["stream"] = self.stream_url
        if "rabbitmq_management" in self.plugins:
            offered["management"] = self.management_url
        return offered

    @property
    def _processes(self) -> list[OwnProcess | None]:
        return [self._server, self._epmd]

    def start(self) -> None:
        """Start the node and wait until it takes connections."""
        if self.running:
            return
        server = self._command("rabbitmq-server")
        folder = self._prepared_folder()
        environment = self._environment(folder)
        try:
            # Our own epmd, as a child that we can end: one that Erlang starts by itself would stay for ever.
            if self._epmd is None or not self._epmd.alive:
                command = [*self._prefix(), "epmd", "-port", str(self.ports.epmd), "-address", LOOPBACK]
                self._epmd = self._spawn(command, environment, folder / "epmd.log")
                self._await_port(self._epmd, self.ports.epmd, "epmd.log")
            self._server = self._spawn(server, environment, folder / "server.log")
            self._await_port(self._server, self.ports.amqp, "server.log")
            self._await_startup()
        except BaseException:
            self.stop()
            raise

    def set_memory_alarm(self, on: bool) -> None:
        """Raise a real memory alarm (the node blocks every connection that publishes), or clear it."""
        self.control("set_vm_memory_high_watermark", "0" if on else str(_WATERMARK))

    def await_registered(self, name: str) -> None:
        """Wait until the node has stored that a quorum queue, or its first stream, exists.

        RabbitMQ keeps the names of Raft members in a file that is written about a second after the last
        change. If it is killed before, it has forgotten the queue when it comes back: one of these names a
        second after it was declared (for streams one for all, of the coordinator, after the first ever).
        """
        assert self.folder is not None
        known_name = name.encode()
        deadline = time.monotonic() + _START_S
        while not any(known_name in file.read_bytes() for file in self.folder.glob("data/*/*/*/names.dets")):
            if not self.running or time.monotonic() > deadline:
                raise ServerFailed(f"RabbitMQ node {self.name} did not store that {name!r} exists")
            time.sleep(0.01)

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` and return its output."""
        answer = self._control(*arguments)
        if answer.returncode:
            said = (answer.stderr or answer.stdout).strip().splitlines()
            raise ServerFailed(
                f"rabbitmqctl {' '.join(arguments)} failed on node {self.name}: {said[-1:] or 'no answer'}"
            )
        return answer.stdout

    def record(self) -> dict[str, object]:
        return LocalServer.record(self) | {
            "plugins": list(self.plugins),
            "ports": asdict(self.ports),
            "epmd": self._epmd.record() if self._epmd else None,
            "version": self.version,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RabbitMqNode:
        """Find the node that another process started and recorded."""
        node = cls(
            name=record["name"],
            folder=Path(record["folder"]),
            plugins=tuple(record["plugins"]),
            ports=Ports(**record["ports"]),
            version=record.get("version"),
        )
        node._server = OwnProcess.find(record["server"])
        node._epmd = OwnProcess.find(record["epmd"])
        return node

    def _prefix(self) -> list[str]:
        return [] if self.version is None else rabbitmq_packages.namespace_command(self.version)

    def _command(self, name: str) -> list[str]:
        prefix = self._prefix()
        return [*prefix, str(rabbitmq_packages.SCRIPTS / name)] if prefix else [str(_script(name))]

    def _prepared_folder(self) -> Path:
        folder = self._own_folder()
        cookie = folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        (folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (folder / "environment.conf").touch()
        (folder / "rabbitmq.conf").write_text("".join(f"{key} = {value}\n" for key, value in self._conf().items()))
        return folder

    def _conf(self) -> dict[str, str]:
        ports = self.ports
        conf = {
            "listeners.tcp.1": f"{LOOPBACK}:{ports.amqp}",
            "vm_memory_high_watermark.relative": str(_WATERMARK),
            "collect_statistics_interval": "1000",
            # The messages of a client that was cut off must return before the default of 60 s.
            "heartbeat": "10",
        }
        if self.tls is not None:
            conf |= {
                "listeners.ssl.1": f"{LOOPBACK}:{ports.amqps}",
                "ssl_options.cacertfile": str(self.tls.authority),
                "ssl_options.certfile": str(self.tls.certificate),
                "ssl_options.keyfile": str(self.tls.key),
            }
        if "rabbitmq_management" in self.plugins:
            conf |= {"management.tcp.ip": LOOPBACK, "management.tcp.port": str(ports.management)}
        if "rabbitmq_stream" in self.plugins:
            # The node tells stream clients which host to connect to; by default the machine's host name.
            conf |= {
                "stream.listeners.tcp.1": f"{LOOPBACK}:{ports.stream}",
                "stream.advertised_host": LOOPBACK,
                "stream.advertised_port": str(ports.stream),
                "stream.frame_max": str(16 << 20),  # the default of 1 MiB is also the limit of a message
            }
            if self.tls is not None:
                conf |= {
                    "stream.listeners.ssl.1": f"{LOOPBACK}:{ports.stream_tls}",
                    "stream.advertised_tls_port": str(ports.stream_tls),
                }
        if "rabbitmq_prometheus" in self.plugins:
            conf |= {"prometheus.tcp.ip": LOOPBACK, "prometheus.tcp.port": str(ports.prometheus)}
        return conf | dict(self.config)

    def _environment(self, folder: Path) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        return inherited | {
            "HOME": str(folder),
            # With this set the script becomes the server instead of waiting for it: one process, one pid.
            "RUNNING_UNDER_SYSTEMD": "1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "ERL_EPMD_PORT": str(self.ports.epmd),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_NODE_PORT": str(self.ports.amqp),
            "RABBITMQ_DIST_PORT": str(self.ports.distribution),
            "RABBITMQ_CTL_DIST_PORT_MIN": "20000",
            "RABBITMQ_CTL_DIST_PORT_MAX": "65000",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(folder / "feature_flags"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{_ERLANG_FLAGS} -start_epmd false -kernel inet_dist_use_interface {{127,0,0,1}}"
            ),
            "RABBITMQ_CTL_ERL_ARGS": "-start_epmd false",
        }

    def _await_port(self, process: OwnProcess, port: int, log: str) -> None:
        deadline = time.monotonic() + _START_S
        while not accepts(port):
            if not process.alive or time.monotonic() > deadline:
                raise ServerFailed(self._failure(log))
            time.sleep(0.05)

    def _await_startup(self) -> None:
        """Wait until the node is fully up, a little after its port opens; rabbitmqctl may not find it at once."""
        deadline = time.monotonic() + _START_S
        while self._control("await_startup").returncode:
            if not self.running or time.monotonic() > deadline:
                raise ServerFailed(self._failure("server.log"))
            time.sleep(0.2)

    def _failure(self, log: str) -> str:
        """Find the first error in the log: Erlang's crash report after it is long and adds nothing."""
        assert self.folder is not None
        text = tail(self.folder / log, lines=500)
        complaints = [line.split("> ", 1)[-1].strip() for line in text.splitlines() if "[error]" in line]
        said = " ".join([line for line in complaints if line][:4]) or text or "nothing"
        return f"RabbitMQ node {self.name} did not start; its {log} says: {said}"

    def _control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if not self.running or self.folder is None:
            raise ServerFailed(f"RabbitMQ node {self.name} is not running; start it first")
        return subprocess.run(
            [*self._command("rabbitmqctl"), "--quiet", *arguments],
            capture_output=True,
            text=True,
            env=self._environment(self.folder),
            cwd=self.folder,
            timeout=_START_S,
            check=False,
        )


def installed() -> bool:
    """Whether RabbitMQ's scripts are on this machine."""
    try:
        _script("rabbitmq-server")
    except ServerMissing:
        return False
    return True


def _script(name: str) -> Path:
    if (_SCRIPTS / name).exists():
        return _SCRIPTS / name
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(
            f"{name} is not installed here: apt-get install rabbitmq-server (Debian, Ubuntu), or use a server "
            "that runs elsewhere"
        )
    return Path(found)
