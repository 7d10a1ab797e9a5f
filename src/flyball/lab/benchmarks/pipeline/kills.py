"""Exactly once under repeated kill -9 of the driver or any other process of a running pipeline.

`flyball run` with lanes that are processes of their own. Victims are chosen at random: the driver, the splitter, a
lane, the combiner or the rules. When the driver was killed, the run is started again. It takes a quarter of an
hour and is left out when quick.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError
from flyball.demo import events as demo_events
from flyball.demo.config import FILTER_AND_RULE
from flyball.lab.bench import BenchContext, Row

_EVENTS_A_KILL = 5000
_PER_SECOND = 800
_LONGEST_S = 60.0

_CONFIG = (
    """
folder = "data"

[source]
kind = "demo"
seed = {seed}
events = {events}
per_second = {per_second}

[pipeline]
columns = "{columns}"
event_time = "event_time"
runner = "process"
lanes = {{ count = 2 }}
"""
    + FILTER_AND_RULE
)


def cases(context: BenchContext) -> Iterator[Row]:
    if context.quick:
        context.note("  left out when quick")
        return
    kills = 20
    folder = context.workdir / "kills"
    folder.mkdir()
    config = folder / "run.toml"
    events = _EVENTS_A_KILL * kills
    config.write_text(
        _CONFIG.format(seed=context.seed, events=events, per_second=_PER_SECOND, columns=demo_events.COLUMNS)
    )
    url, rng = f"sqlite:///{folder / 'data' / 'broker.db'}", random.Random(context.seed)
    victims: list[str] = []
    run = _run(config)
    for _ in range(kills):
        if run.poll() is not None:
            run = _run(config)
        goal, deadline_s = _results_written(url) + rng.randint(1, 2), time.monotonic() + _LONGEST_S
        while run.poll() is None and _results_written(url) < goal and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 0.5))  # somewhere in the work that is under way
        name, pid = rng.choice(_processes(run.pid))
        victims.append(name)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it had just been restarted
        if pid == run.pid:
            run.wait()
    context.note(f"  killed: {', '.join(victims)}")
    if run.poll() is None:
        run.send_signal(signal.SIGTERM)
    run.wait()
    final = _run(config)
    answer = json.loads(final.communicate()[0])
    wrong = sum(answer[name] for name in ("lost", "duplicated", "disordered", "waiting"))
    wrong += abs(answer["events_in"] - events)
    yield context.row("kill -9", wrong, f"events wrong after {kills} kills of {events:,}", goal=0)


def _run(config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flyball", "run", str(config), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _results_written(url: str) -> int:
    """Entries in the results log so far."""
    try:
        with open_log_reader(url, "results") as reader:
            return reader.bounds(0)[1]
    except BrokerError:
        return 0


def _processes(driver: int) -> list[tuple[str, int]]:
    """List the driver and the processes that it started itself, by the last word of their command."""
    parts = [("driver", driver)]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if parent == driver and b"flyball.pipeline.run.worker" in words:
            at = words.index(b"flyball.pipeline.run.worker")
            parts.append((words[at + 1].decode(), int(folder.name)))
    return sorted(parts)
