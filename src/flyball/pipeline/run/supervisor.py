"""Keeps the processes of a pipeline running: one that dies is restarted, with a growing back-off.

What a process leaves behind when it is killed (Spark's JVM, Python workers) is ended before the next one starts:
two of the same name never write side by side. That holds for a supervisor that is killed, too: the next one finds
its processes by what it wrote down.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flyball.backoff import delays_s
from flyball.pipeline.policy import failures
from flyball.pipeline.run.polling import POLL_S
from flyball.pipeline.run.queries import PipelineFailed
from flyball.processes import guardian
from flyball.processes.process import OwnProcess, tail

_GRACE_S = 15.0
FOR_GOOD = 3
"""exit status of a process that would fail again however often it is started"""
BROKER_AWAY = 75
"""exit status of a process that could not reach its broker: it is started again until it can"""


@dataclass(slots=True)
class _Child:
    name: str
    command: tuple[str, ...]
    process: OwnProcess | None = None
    restarts: int = 0
    wanted: bool = True
    again_s: float | None = None
    retries: failures.RetryState = field(default_factory=lambda: failures.RetryState(time.monotonic()))
    failure: str | None = None


class Supervisor:
    """Runs commands by name. Their output, and what is needed to find them again, is in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: dict[str, _Child] = {}
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flyball-supervisor", daemon=True)

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for record in self._folder.glob("*.json"):
            _end_leftover(record)
        self._thread.start()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start it, and again whenever it dies; nothing happens if it runs."""
        with self._lock:
            child = self._children.get(name)
            if child is None or not child.wanted:
                self._children[name] = child = _Child(name, tuple(command))
                self._spawn(child)

    def pids(self) -> dict[str, int]:
        """Process ids of the parts that run now, by name."""
        with self._lock:
            running = {name: child.process for name, child in self._children.items()}
        return {name: process.pid for name, process in running.items() if process is not None and process.alive}

    def restarts(self) -> dict[str, int]:
        with self._lock:
            return {name: child.restarts for name, child in self._children.items()}

    def is_ready(self, name: str) -> bool:
        """Whether the process that runs now has said so (`say_ready`)."""
        pid = self.pids().get(name)
        try:
            return pid is not None and int(_ready_file(self._folder, name).read_text()) == pid
        except (OSError, ValueError):
            return False

    def check(self) -> None:
        """Raise if a process failed again and again."""
        with self._lock:
            for child in self._children.values():
                if child.failure is not None:
                    raise PipelineFailed(child.failure)

    def stop(self, names: Collection[str]) -> None:
        """End these processes and their children; all get the signal before the first is waited for."""
        with self._lock:
            children = [child for name, child in self._children.items() if name in names]
            for child in children:
                child.wanted = False
        for child in children:
            if child.process is not None:
                child.process.signal(signal.SIGTERM)
        for child in children:
            if child.process is not None:
                child.process.end(_GRACE_S)
                child.process.kill_session()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.stop(tuple(self._children))

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            with self._lock:
                for child in self._children.values():
                    if child.wanted and child.failure is None:
                        self._look_after(child)

    def _look_after(self, child: _Child) -> None:
        assert child.process is not None
        now_s = time.monotonic()
        if child.again_s is not None:
            if now_s >= child.again_s:
                child.restarts += 1
                self._spawn(child)
            return
        if child.process.alive:
            return
        child.process.kill_session()
        status = _status(child.process)
        said = f"see {self._log(child.name)}: {tail(self._log(child.name), 3)}"
        if status == FOR_GOOD:
            child.failure = f"{child.name} cannot continue, {said}"
            return
        # A SIGKILL from outside does not count as a failure; what ends by itself at once will do so again.
        pauses_s = tuple(delays_s(failures.TRIES, first_s=failures.FIRST_S, longest_s=failures.LONGEST_S))
        external_kill = status == -signal.SIGKILL
        child.retries, child.again_s = child.retries.fail(
            now_s, pauses_s, external_kill=external_kill, outage=status == BROKER_AWAY
        )
        if child.again_s is None:
            child.failure = f"{child.name} ended {failures.TRIES + 1} times in a row, {said}"

    def _spawn(self, child: _Child) -> None:
        environment = {**os.environ, "FLYBALL_READY": str(_ready_file(self._folder, child.name))}
        child.process = OwnProcess.spawn(
            child.command, environment=environment, folder=Path.cwd(), log=self._log(child.name)
        )
        guardian.watch_process(child.process)
        self._record(child.name).write_text(json.dumps(child.process.record()))
        child.retries = child.retries.restart(time.monotonic())
        child.again_s = None

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _record(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def say_ready() -> None:
    """A supervised process has begun its work."""
    path = os.environ.get("FLYBALL_READY")
    if path:
        Path(path).write_text(str(os.getpid()))


def _ready_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.ready"


def _status(process: OwnProcess) -> int | None:
    popen: subprocess.Popen[bytes] | None = process.popen
    return None if popen is None else popen.returncode


def _end_leftover(record: Path) -> None:
    """End a process of a supervisor that was killed; its guardian may not have ended it yet."""
    try:
        known = json.loads(record.read_text())
        OwnProcess(int(known["pid"]), str(known["started"])).kill_session()
    except (OSError, ValueError, KeyError):
        pass  # it was killed while it wrote that down; what it started then has not begun anything
    record.unlink(missing_ok=True)
