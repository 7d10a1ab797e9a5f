"""One process: started in its own session, found again from another process, ended by its pid only.

A pid may belong to another process by the time it is used (the kernel reuses them), so a process is identified by
pid *and* start time, and no signal is sent unless both match.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FREEZE_S = 10.0


def tail(path: Path, lines: int = 15) -> str:
    """Read the end of a log, for an error message."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


@dataclass(slots=True)
class OwnProcess:
    """A process that we started. `popen` is set in the process that started it, to reap it."""

    pid: int
    started: str
    popen: subprocess.Popen[bytes] | None = None

    @classmethod
    def spawn(
        cls, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> OwnProcess:
        """Start a command that runs until it is stopped, also after our own end; its output goes to `log`."""
        with log.open("ab") as sink:
            popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,  # a Ctrl-C in the terminal is for the command, not for its servers
            )
        return cls(popen.pid, start_time(popen.pid) or "", popen)

    @classmethod
    def find(cls, record: object) -> OwnProcess | None:
        """Find the process of a `record()`, if it still runs."""
        if not isinstance(record, dict):
            return None
        process = cls(int(record["pid"]), str(record["started"]))
        return process if process.alive else None

    def record(self) -> dict[str, object]:
        return {"pid": self.pid, "started": self.started}

    @property
    def alive(self) -> bool:
        if self.popen is not None and self.popen.poll() is not None:  # reaped
            return False
        return bool(self.started) and start_time(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it with SIGSTOP, and return when all of its threads have stopped.

        The signal is only a request: on a busy machine a thread may run on for milliseconds, and answer.
        """
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + _FREEZE_S
        while self.alive and not _all_stopped(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)

    def end(self, grace_s: float) -> None:
        """Ask it to stop; kill it if it has not within `grace_s`."""
        self.signal(signal.SIGCONT)  # a paused process cannot stop cleanly
        self.signal(signal.SIGTERM)
        if not self.wait(grace_s):
            self.kill()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait(10)

    def session(self) -> list[OwnProcess]:
        """List the live processes of its session: itself and its descendants that did not leave it.

        This works after its own end, too: the kernel does not reuse its pid while a session has that number.
        """
        if start_time(self.pid) not in (None, self.started):
            return []  # its pid was reused, so its session has ended
        processes = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(_fields(int(entry.name))[3]) == self.pid and (began := start_time(int(entry.name))):
                    processes.append(OwnProcess(int(entry.name), began))
        return processes

    def kill_session(self) -> None:
        """Kill it and all processes of its session."""
        for process in self.session():
            process.kill()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it has ended."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _all_stopped(pid: int) -> bool:
    return all(state in "TtZX" for state in _thread_states(pid))


def _thread_states(pid: int) -> list[str]:
    states = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that ended meanwhile
            states.append(thread.read_text().rpartition(")")[2].split()[0])
    return states


def start_time(pid: int) -> str | None:
    """Start time of a process, in the kernel's ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = _fields(pid)
    except OSError:
        return None
    # Its first thread may have ended while others are still ending and have its ports.
    ended = fields[0] in "ZX" and all(state in "ZX" for state in _thread_states(pid))
    return None if ended else fields[19]


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, from the state on."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
