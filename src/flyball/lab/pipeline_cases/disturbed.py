"""A hog on the core of one of two lanes that are Spark applications of their own, each on a core.

Events carry the time at which they were published. How old they are when they stand in the results log, in order,
is their delay. The load is 84 % of what the lanes get through *beside* the hog, measured first.

    hog p99                        p99 with the hog and control, beside the undisturbed p99
    disturbed lane, round robin    p99 of the hog's last third with control, beside equal shares
    disturbed lane, Spark's pull   the same, beside one query of many small partitions, which tasks pull
    round robin growth             by how many seconds a second the delay grows with equal shares
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.control.models import Array
from flyball.lab.bench import BenchContext, Row
from flyball.lab.hog import hogs
from flyball.lab.pipeline_cases import load
from flyball.pipeline import entry
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.runner import RunningPipeline, open_pipeline

LOAD = 0.84
DISTURBED = 1
_TICK_S = 0.05
_WARM_EVENTS = 400_000
_CAPACITY_EVENTS = 1_000_000
_LONGEST_HOG_S = 300.0
_PULLED_PARTITIONS = 16


def cases(context: BenchContext) -> Iterator[Row]:
    folder = context.workdir / "disturbed"
    folder.mkdir()
    hosts = folder / "hosts.csv"
    load.write_hosts(hosts)
    quiet_s, hog_s = (15.0, 30.0) if context.quick else (30.0, 60.0)
    lanes: dict[str, Any] = {"count": 2, "cores": [[0], [1]]}
    process: dict[str, Any] = {"runner": "process", "rules": False, "watermark_s": 0.2}
    control = load.config(hosts, lanes=lanes, **process)
    rig = _Rig(folder / "control", control, context.seed)
    with rig:
        rate = LOAD * rig.capacity()
        context.note(f"  beside the hog the lanes get through {rate / LOAD:,.0f} events/s; load {rate:,.0f}")
        ours = rig.disturbed(rate, quiet_s, hog_s)
    context.note(f"  control: {ours}")
    yield context.row("hog p99", ours.hog_p99_s, "s", peer=ours.quiet_p99_s, peer_name="undisturbed", goal=1.6)
    equal = load.config(hosts, lanes={**lanes, "balance": False}, **process)
    others = {"round robin": equal}
    if not context.quick:
        pulled = {"count": _PULLED_PARTITIONS, "balance": False}
        others["Spark's pull"] = load.config(hosts, lanes=pulled, rules=False, watermark_s=0.2, runner="inline")
    for name, config in others.items():
        with _Rig(folder / name.replace(" ", "-").replace("'", ""), config, context.seed) as other:
            found = other.disturbed(rate, quiet_s, hog_s)
        context.note(f"  {name}: {found}")
        yield context.row(f"disturbed lane, {name}", ours.last_p99_s, "s", peer=found.last_p99_s, peer_name=name)
        if name == "round robin":
            yield context.row("round robin growth", found.growth, "s/s")


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Delays before the hog, while it is there, and in its last third; `growth`: of the mean delay, s/s."""

    quiet_p99_s: float
    hog_p99_s: float
    last_p99_s: float
    growth: float

    def __str__(self) -> str:
        return (
            f"p99 {self.quiet_p99_s:.2f} s undisturbed, {self.hog_p99_s:.2f} s with the hog, "
            f"{self.last_p99_s:.2f} s in its last third, growing by {self.growth:.3f} s/s"
        )


class _Rig:
    """A running pipeline, somebody who publishes to it at a rate, and somebody who watches its results."""

    def __init__(self, folder: Path, config: PipelineConfig, seed: int) -> None:
        folder.mkdir()
        self._url = f"sqlite:///{folder / 'broker.db'}"
        self._config, self._folder = config, folder
        self._pipeline: RunningPipeline = open_pipeline(self._url, config, folder)
        self._templates = list(load.bodies(10_000, seed))
        self._rate = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._watch)]
        self._seen: list[tuple[float, Array]] = []
        """(when rows came to the results log, the times at which their events were published)"""

    def __enter__(self) -> _Rig:
        load.fill(self._url, load.bodies(_WARM_EVENTS, 1), ends=False)
        self._pipeline.start()
        for thread in self._threads:
            thread.start()
        self._caught_up(_WARM_EVENTS)
        return self

    def __exit__(self, *reason: object) -> None:
        self._rate = 0.0
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._pipeline.stop()

    def capacity(self) -> float:
        """Events a second beside the hog, with more waiting than the lanes get through.

        Counts come in leaps, a batch at a time: so a whole backlog is timed, not what a while brings.
        """
        before = self._pipeline.totals.events_in
        load.fill(self._url, load.bodies(_CAPACITY_EVENTS, 2), ends=False)
        since_s = time.monotonic()
        with hogs(_LONGEST_HOG_S, [DISTURBED]):
            self._caught_up(before + _CAPACITY_EVENTS)
        return _CAPACITY_EVENTS / (time.monotonic() - since_s)

    def disturbed(self, rate: float, quiet_s: float, hog_s: float) -> Disturbed:
        self._rate = rate
        time.sleep(quiet_s / 3)  # the start is not what is measured
        began_s = time.time()
        time.sleep(quiet_s)
        hog_at_s = time.time()
        with hogs(hog_s + 60.0, [DISTURBED]):
            time.sleep(hog_s)
            hog_gone_s = time.time()
        self._rate = 0.0
        self._pipeline.check()
        quiet, hog = self._delays(began_s, hog_at_s), self._delays(hog_at_s, hog_gone_s)
        last = self._delays(hog_gone_s - hog_s / 3, hog_gone_s)
        return Disturbed(_p99(quiet), _p99(hog), _p99(last), self._growth(hog_at_s, hog_gone_s))

    def _caught_up(self, events: int) -> None:
        while self._pipeline.totals.events_in < events:
            self._pipeline.check()
            time.sleep(0.2)

    def _delays(self, since_s: float, until_s: float) -> Array:
        parts = [came_s - times for came_s, times in self._seen if since_s <= came_s < until_s]
        # What has not come by then is at least as late as the last that came: an absence must not look good.
        return np.concatenate(parts) if parts else np.array([until_s - since_s])

    def _growth(self, since_s: float, until_s: float) -> float:
        points = [
            (came_s, float((came_s - times).mean())) for came_s, times in self._seen if since_s <= came_s < until_s
        ]
        if len(points) < 2:
            return 1.0
        at, delay = np.array(points).T
        return float(np.polyfit(at, delay, 1)[0])

    def _publish(self) -> None:
        asyncio.run(self._publishing())

    async def _publishing(self) -> None:
        numbers = count(10_000_000)
        async with await connect(self._url) as broker:
            await broker.declare(self._config.input, "log")
            sender = await broker.sender(self._config.input)
            owed, looked_s = 0.0, time.time()
            while not self._stop.is_set():
                await asyncio.sleep(_TICK_S)
                now_s = time.time()
                owed += self._rate * (now_s - looked_s)
                looked_s, events = now_s, int(owed)
                owed -= events
                if events:
                    await sender.send_batch([Message(self._body(next(numbers), now_s)) for _ in range(events)])

    def _body(self, number: int, now_s: float) -> bytes:
        """A template with its time replaced; every field keeps its width."""
        template = self._templates[number % len(self._templates)]
        at = template.index(b'"event_time":') + 13
        return b"%b%.3f%b" % (template[:at], now_s, template[at + 14 :])

    def _watch(self) -> None:
        following = 0
        with open_log_reader(self._url, self._config.results) as reader:
            while not self._stop.wait(_TICK_S):
                try:
                    end = reader.bounds(0)[1]
                except NoSuchChannel:
                    continue
                now_s = time.time()
                for chunk in reader.read_bodies(0, following, end):
                    for body in chunk.bodies:
                        times = entry.decode(body).rows["event_time"].to_numpy()
                        if times.size:
                            self._seen.append((now_s, times))
                following = end


def _p99(delays: Array) -> float:
    return float(np.percentile(delays, 99))
