"""A real PostgreSQL server on this machine, with its own port and data, for tests and trials of a shared store."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from flyball.processes.process import OwnProcess, tail
from flyball.servers import ServerFailed, ServerMissing
from flyball.servers.local import LocalServer
from flyball.servers.ports import LOOPBACK, accepts, free_ports

_START_S = 60.0
_DEBIAN = Path("/usr/lib/postgresql")  # Debian and Ubuntu keep the server's programs off the PATH
_ACCOUNTS = ("postgres", "nobody")  # PostgreSQL refuses to run as root


@dataclass(slots=True)
class PostgresqlServer(LocalServer):
    """One server with one database, open to every local user."""

    port: int = field(default_factory=lambda: free_ports(1)[0])

    @property
    def url(self) -> str:
        return f"postgresql://flyball@{LOOPBACK}:{self.port}/postgres"

    @property
    def urls(self) -> dict[str, str]:
        return {"postgresql": self.url}

    def start(self) -> None:
        if self.running:
            return
        server, make = _program("postgres"), _program("initdb")
        folder = self._own_folder()
        account = _account()
        if account is not None:
            shutil.chown(folder, account, pwd.getpwnam(account).pw_gid)
        data = folder / "data"
        try:
            if not (data / "PG_VERSION").exists():
                self._initialise([*_as_account(account), str(make)], data)
            command = [str(server), "-D", str(data), "-h", LOOPBACK, "-p", str(self.port), "-k", str(folder)]
            self._server = self._spawn([*_as_account(account), *command], os.environ, folder / "server.log")
            self._await_ready(self._server, server, folder / "server.log")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._end_sessions()
        LocalServer.stop(self)

    def restart(self) -> None:
        self._end_sessions()
        LocalServer.restart(self)

    def _end_sessions(self) -> None:
        """Shut down without waiting for clients, as SIGTERM would."""
        if self._server is not None:
            self._server.signal(signal.SIGINT)

    def _initialise(self, command: list[str], data: Path) -> None:
        options = ["-D", str(data), "-U", "flyball", "-A", "trust", "-E", "UTF8", "--locale", "C"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, cwd=data.parent)
        if done.returncode:
            raise ServerFailed(f"initdb failed: {done.stderr.strip() or done.stdout.strip()}")

    def _await_ready(self, process: OwnProcess, server: Path, log: Path) -> None:
        deadline = time.monotonic() + _START_S
        while not self._ready(server):
            if not process.alive or time.monotonic() > deadline:
                raise ServerFailed(f"PostgreSQL did not start; its log says: {tail(log)}")
            time.sleep(0.05)

    def _ready(self, server: Path) -> bool:
        if not accepts(self.port):
            return False
        command = [
            str(server.with_name("pg_isready")),
            "-q",
            "-h",
            LOOPBACK,
            "-p",
            str(self.port),
            "-U",
            "flyball",
        ]
        return subprocess.run(command, check=False).returncode == 0


def _program(name: str) -> Path:
    on_path = shutil.which(name)
    if on_path is not None:
        return Path(on_path).resolve()
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    if not versions:
        raise ServerMissing("PostgreSQL is not installed: apt-get install postgresql")
    return versions[-1]


def _account() -> str | None:
    """The account to run under; None: our own."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _ACCOUNTS if name in names), None)


def _as_account(account: str | None) -> list[str]:
    if account is None:
        return []
    entry = pwd.getpwnam(account)
    return ["setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
