"""The base of all local servers: a name, a folder; start, stop, kill, pause and find it again."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from flyball.processes import guardian
from flyball.processes.process import OwnProcess

_STOP_S = 30.0


@dataclass(slots=True)
class LocalServer(ABC):
    """One server. Use it as a context manager, or call `start` and `stop`.

    It ends with the program that started it, even if that is killed, unless `detach` is called.

    `folder` None: a temporary one, removed by `stop`. `kill` ends it like a crash, `pause` suspends it; `start`
    after `kill` or, with a given folder, after `stop` starts it again with the same ports and data.
    """

    name: str = field(default_factory=lambda: f"flyball-{secrets.token_hex(4)}")
    folder: Path | None = None
    _temporary: bool = field(default=False, init=False)
    _server: OwnProcess | None = field(default=None, init=False, repr=False)

    @abstractmethod
    def start(self) -> None:
        """Start with the existing data, if there are any, and wait until it can be used."""

    @property
    def _processes(self) -> list[OwnProcess | None]:
        """All processes of this server, the server itself first."""
        return [self._server]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process is not None and process.alive]

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.alive

    def stop(self) -> None:
        """End it cleanly, and remove the folder if it is temporary."""
        for process in self._processes:
            if process is not None:
                process.end(_STOP_S)
        self._server = None
        if self._temporary and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder, self._temporary = None, False

    def detach(self) -> None:
        """Let it run on when this program ends; it must have a folder of its own."""
        for process in self._processes:
            if process is not None:
                guardian.release_process(process)

    def restart(self) -> None:
        """Stop cleanly if it runs, and start again with the same ports and data."""
        if self._server is not None:
            self._server.end(_STOP_S)
        self.start()

    def kill(self) -> None:
        """End the server at once, like kill -9; its data stay for `start`."""
        if self._server is not None:
            self._server.kill()

    def pause(self) -> None:
        """Suspend the server: connections stay open and get no answer."""
        if self._server is not None:
            self._server.freeze()

    def resume(self) -> None:
        if self._server is not None:
            self._server.signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _own_folder(self) -> Path:
        """Return the folder; create it if it does not exist."""
        if self.folder is None:
            self.folder, self._temporary = Path(tempfile.mkdtemp(prefix=f"{self.name}-")), True
            guardian.watch_folder(self.folder)
        self.folder = self.folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> OwnProcess:
        process = OwnProcess.spawn(command, environment=environment, folder=log.parent, log=log)
        guardian.watch_process(process)
        return process

    def record(self) -> dict[str, object]:
        """Data (JSON) by which another process finds this server again."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "server": self._server.record() if self._server else None,
        }
