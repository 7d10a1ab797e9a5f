"""Groups: real members under the same faults, in client mode and in broker mode.

Members are processes with sessions, or views, in one store. They are killed, started again, stopped and continued;
what each of them read and when is in its log. In client mode they fetch views from three replicas that lag and
lose calls. `groups_ownership` has the same comparison in virtual time, with more members and faults.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.plotting import new_figure
from flyball.lab.rigs.groups.ownership_log import Absence, count_readers, read_spans

MODES = ("client", "broker")
MEMBERS = ("m1", "m2", "m3", "m4")
QUEUES = 8
HEARTBEAT_S, SESSION_S = 0.5, 3.0
_VIEWS = {"replicas": 3, "lag_s": 1.0, "loss": 0.1}
_STEP_S = 0.02
_COLOURS = {"m1": "#c3dced", "m2": "#cfe3bd", "m3": "#f3ead0", "m4": "#e8dcf0"}
_TWICE, _UNOWNED = "#d55e00", "#000000"

Fault = Literal["none", "kill", "stop", "kill two"]
_FAULTS: dict[Fault, tuple[str, ...]] = {
    "none": (),
    "kill": ("m2",),
    "stop": ("m1",),  # in broker mode it is the leader: it began first
    "kill two": ("m1", "m3"),
}
_LABELS: dict[Fault, str] = {
    "none": "none",
    "kill": "1 of 4 killed, back after 6 s",
    "stop": "1 of 4 stopped for 6 s (the leader)",
    "kill two": "2 of 4 killed, back after 6 s (one is the leader)",
}


@dataclass
class _Processes:
    """The members of one run."""

    folder: Path
    mode: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    absences: dict[str, list[Absence]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        config: dict[str, Any] = {
            "name": "shop",
            "topics": {"orders": QUEUES},
            "store": f"sqlite:///{self.folder / 'groups.db'}",
            "member": name,
            "heartbeat_s": HEARTBEAT_S,
            "session_timeout_s": SESSION_S,
            "coalesce_s": HEARTBEAT_S,
            "rebalance_s": 5.0,
            "mode": self.mode,
        }
        if self.mode == "client":
            config |= {"strategy": "averagely", "views": _VIEWS}
        command = [sys.executable, "-m", "flyball.lab.rigs.groups.member_process"]
        self.running[name] = subprocess.Popen([*command, str(self._log(name)), json.dumps(config)])

    def kill(self, name: str) -> float:
        process = self.running.pop(name)
        process.kill()
        process.wait()
        return time.monotonic()

    def pause(self, name: str) -> float:
        """Stop a process, but not while it writes to the store: then nobody else could."""
        for _ in range(200):
            os.kill(self.running[name].pid, signal.SIGSTOP)
            if not _is_locked(self.folder / "groups.db"):
                return time.monotonic()
            self.resume(name)
        raise TimeoutError(f"{name} always writes to its store")

    def resume(self, name: str) -> float:
        os.kill(self.running[name].pid, signal.SIGCONT)
        return time.monotonic()

    def note(self, name: str, start_s: float, end_s: float, *, final: bool) -> None:
        self.absences.setdefault(name, []).append(Absence(start_s, end_s, final))

    def lines(self) -> dict[str, list[str]]:
        logs = {name: self._log(name) for name in MEMBERS}
        return {name: log.read_text().splitlines() for name, log in logs.items() if log.exists()}

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def _is_locked(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False


@contextmanager
def _processes(mode: str) -> Iterator[_Processes]:
    with tempfile.TemporaryDirectory() as folder:
        group = _Processes(Path(folder), mode)
        try:
            yield group
        finally:
            for name in list(group.running):
                group.resume(name)
                group.kill(name)


@dataclass(frozen=True, slots=True)
class Run:
    """`readers`: who read each queue in each step after the group had come to rest."""

    readers: list[list[list[str]]]
    fault_s: tuple[float, float] | None

    @property
    def twice_s(self) -> float:
        return _STEP_S * sum(len(step) > 1 for queue in self.readers for step in queue)

    @property
    def unowned_s(self) -> float:
        return _STEP_S * sum(not step for queue in self.readers for step in queue)

    @property
    def longest_unowned_s(self) -> float:
        longest = 0
        for queue in self.readers:
            length = 0
            for step in queue:
                length = 0 if step else length + 1
                longest = max(longest, length)
        return _STEP_S * longest


def run_members(mode: str, fault: Fault) -> Run:
    """Start four members, let them settle, harm some of them, and look on."""
    victims = _FAULTS[fault]
    with _processes(mode) as group:
        for name in MEMBERS:
            group.start(name)
            time.sleep(0.3)  # the first one leads
        time.sleep(8.0)
        start_s = time.monotonic()
        time.sleep(2.0)
        harmed_s = {name: group.pause(name) if fault == "stop" else group.kill(name) for name in victims}
        time.sleep(6.0)
        back_s = time.monotonic()
        for name in victims:
            if fault == "stop":
                back_s = group.resume(name)
            else:
                group.start(name)
            group.note(name, harmed_s[name], back_s, final=fault != "stop")
        time.sleep(8.0)
        end_s = time.monotonic()
        spans = read_spans(group.lines(), group.absences, end_s)
    readers = count_readers(spans, QUEUES, start_s, end_s, _STEP_S)
    return Run(readers, (min(harmed_s.values()) - start_s, back_s - start_s) if victims else None)


def run(context: ExperimentContext) -> Report:
    faults: tuple[Fault, ...] = ("kill",) if context.quick else ("none", "kill", "stop", "kill two")
    runs = {fault: {mode: run_members(mode, fault) for mode in MODES} for fault in faults}
    rows: list[tuple[object, ...]] = []
    for fault, found in runs.items():
        figures = [
            [round(value, 1) for value in (one.twice_s, one.unowned_s, one.longest_unowned_s)]
            for one in (found[mode] for mode in MODES)
        ]
        rows.append((_LABELS[fault], *(value for pair in zip(*figures, strict=True) for value in pair)))
        context.note(f"{_LABELS[fault]}: client {figures[0]}, broker {figures[1]}")
    shown = runs[faults[-1]]
    return Report(
        title="Real members under the same faults: client mode and broker mode",
        body=[
            f"{len(MEMBERS)} processes, {QUEUES} queues, heartbeats every {HEARTBEAT_S:g} s, sessions of "
            f"{SESSION_S:g} s, one run each of about 16 s. Client mode: averagely, 3 replicas whose views lag by "
            "up to 2 s, a tenth of the calls lost. Broker mode: sticky. In queue-seconds; a member that is "
            "stopped reads nothing, and reads on when it continues until it learns better.",
            Table(
                (
                    "fault",
                    "read twice, client",
                    "read twice, broker",
                    "unread, client",
                    "unread, broker",
                    "longest unread s, client",
                    "longest unread s, broker",
                ),
                rows,
            ),
            Picture(
                "members",
                f"Who reads which queue: {_LABELS[faults[-1]]}; orange: read twice, black: unread; the lines are "
                "the beginning and the end of the fault",
                _draw(shown),
            ),
            "In broker mode a queue passes on when its owner has released it or its session is over: it is unread "
            "for about the session time-out after a crash, and never read twice but by a member that was stopped, "
            "for the moment until it finds that its session is over. In client mode members act on views of "
            "different age.",
        ],
        data={
            fault: {
                mode: {
                    "twice_s": one.twice_s,
                    "unowned_s": one.unowned_s,
                    "longest_unowned_s": one.longest_unowned_s,
                }
                for mode, one in found.items()
            }
            for fault, found in runs.items()
        },
    )


def _draw(runs: dict[str, Run]) -> Any:
    from matplotlib.colors import to_rgb

    figure, axes = new_figure(rows=len(runs), row_height_in=2.4, width_in=10.0)
    for axis, (mode, one) in zip(axes, runs.items(), strict=True):
        image = np.array([[to_rgb(_colour(step)) for step in queue] for queue in one.readers])
        axis.imshow(
            image,
            aspect="auto",
            interpolation="nearest",
            extent=(0.0, _STEP_S * image.shape[1], QUEUES - 0.5, -0.5),
        )
        axis.grid(False)
        for at_s in one.fault_s or ():
            axis.axvline(at_s, color="#555555", linewidth=1.0)
        axis.set_ylabel("queue")
        axis.set_title(
            f"{mode} mode: {one.twice_s:.1f} queue-seconds read twice, {one.unowned_s:.1f} unread", fontsize=9
        )
    axes[-1].set_xlabel("time in s")
    return figure


def _colour(readers: list[str]) -> str:
    if not readers:
        return _UNOWNED
    return _TWICE if len(readers) > 1 else _COLOURS[readers[0]]
