"""A running pipeline, somebody who publishes to it at a rate, and somebody who watches what comes out, and when.

Events carry the time at which they were published. How old they are when they stand in the results log, in order,
is their delay. How many results the published events have to make is counted here, so what the pipeline has
*finished* is known without asking it.

A few events a second always come: without later ones the last would wait for ever, since only they say that it is
later by now.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flyball.brokers import Message, Sender, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.control.models import Array
from flyball.errors import FlyballError
from flyball.lab.rigs.pipeline import load
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import QueueLevels
from flyball.pipeline.run.open import Pipeline

_TICK_S = 0.05
_TRICKLE_PER_S = 100.0
_TEMPLATES = 10_000
_AT_ONCE = 5_000
_BURST_S = 3.0
_PATIENCE_S = 180.0
_TIME = b'"event_time":'
_TIME_BYTES = 14


class NothingCame(FlyballError, TimeoutError):
    """The pipeline did not finish in any reasonable time what was published."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Of the events whose results came in a span of time. `growth`: of their mean, in seconds a second."""

    p50_s: float
    p99_s: float
    growth: float

    def __str__(self) -> str:
        return f"p50 {self.p50_s:.2f} s, p99 {self.p99_s:.2f} s, growing by {self.growth:.3f} s/s"


class DelayRig:
    """As a context it runs. `rate`: events a second that are published from now on, and a trickle at least."""

    def __init__(self, folder: Path, config: PipelineConfig, seed: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.config = folder, config
        self.url = f"sqlite:///{folder / 'broker.db'}"
        self.pipeline = Pipeline(self.url, config, folder)
        self.rate = 0.0
        templates = list(load.bodies(_TEMPLATES, seed))
        # Cut beforehand where the time stands: publishing must not cost what the lanes need.
        self._cut = [_around_time(body) for body in templates]
        kept = [load.passes(body) for body in templates]
        self._kept = np.concatenate([[0], np.cumsum(kept)])
        self._published = 0
        self._burst = 0
        """Events that are to be published at once, still to come."""
        self._results = 0
        self._seen: list[tuple[float, Array]] = []
        """(when rows came to the results log, the times at which their events were published)"""
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._publish, self._watch)]

    def __enter__(self) -> DelayRig:
        self.pipeline.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.rate = 0.0
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self.pipeline.stop()

    def warm_up(self, lanes: Sequence[int], batches: int) -> None:
        """Until every lane has ended so many batches, small ones since hardly anything comes: what a batch costs
        whatever its size falls by half meanwhile, for the compiler of Java needs that often."""
        levels = QueueLevels(self.url, self.config.results)
        self._until(
            lambda: min(level.batch for level in levels.read(lanes)) >= batches, f"{batches} batches of every lane"
        )
        levels.close()

    def publish(self, events: int) -> None:
        """So many at once, besides what comes anyway; returns when all of them stand in the input."""
        self._burst = events
        while self._burst:
            self.pipeline.check()
            time.sleep(_TICK_S)

    def wait_for(self, share: float) -> None:
        """Until that share of everything published so far is finished."""
        goal = share * self._expected()
        self._until(lambda: self._results >= goal, f"{goal:.0f} results")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        gives_up_s = time.monotonic() + _PATIENCE_S
        while not done():
            self.pipeline.check()
            if time.monotonic() > gives_up_s:
                raise NothingCame(f"{what} did not come in {_PATIENCE_S:.0f} s; see {self.folder}/processes")
            time.sleep(_TICK_S)

    def lanes_per_s(self, lanes: Sequence[int], seconds: float) -> float:
        """Events a second that these lanes finish from now on, each by itself: of every batch that ends, its
        events and its time. What all have finished, in order, would tell of the slowest alone."""
        events, took_s = dict.fromkeys(lanes, 0), dict.fromkeys(lanes, 0.0)
        levels = QueueLevels(self.url, self.config.results)
        known = {lane: level.batch for lane, level in zip(lanes, levels.read(lanes), strict=True)}
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(_TICK_S)
            for lane, level in zip(lanes, levels.read(lanes), strict=True):
                if level.batch != known[lane] and level.cycle is not None:
                    known[lane] = level.batch
                    events[lane] += level.cycle[0]
                    took_s[lane] += level.cycle[1]
        levels.close()
        if not all(took_s.values()):
            raise NothingCame(f"a lane finished no batch in {seconds:.0f} s; see {self.folder}/processes")
        return sum(events[lane] / took_s[lane] for lane in lanes)

    def delays(self, since_s: float, until_s: float) -> Delays:
        """Of the results that came in between."""
        came = [(came_s, came_s - born_s) for came_s, born_s in self._seen if since_s <= came_s < until_s]
        if len({came_s for came_s, _ in came}) < 2:
            # What has not come is at least as late as the span is long: an absence must not look good.
            return Delays(until_s - since_s, until_s - since_s, 1.0)
        every = np.concatenate([delays for _, delays in came])
        at = np.array([came_s for came_s, _ in came])
        growth = float(np.polyfit(at - at[0], [float(delays.mean()) for _, delays in came], 1)[0])
        return Delays(float(np.percentile(every, 50)), float(np.percentile(every, 99)), growth)

    def _expected(self) -> int:
        """Results of everything that was published."""
        rounds, rest = divmod(self._published, _TEMPLATES)
        return int(rounds * self._kept[-1] + self._kept[rest])

    def _publish(self) -> None:
        asyncio.run(self._publishing())

    async def _publishing(self) -> None:
        async with await connect(self.url) as broker:
            await broker.declare(self.config.input, "log")
            sender = await broker.sender(self.config.input)
            owed, looked_s = 0.0, time.time()
            while not self._stop.is_set():
                await asyncio.sleep(_TICK_S)
                now_s = time.time()
                owed += max(self.rate, _TRICKLE_PER_S) * (now_s - looked_s)
                looked_s, events = now_s, int(owed)
                owed -= events
                await self._send(sender, events, now_s)
                all_at_once = self._burst
                while self._burst and not self._stop.is_set():
                    part = min(_AT_ONCE, self._burst)
                    # As if they had come in the last seconds, and still within any watermark.
                    await self._send(sender, part, now_s - _BURST_S * self._burst / all_at_once)
                    self._burst -= part

    async def _send(self, sender: Sender, events: int, born_s: float) -> None:
        if not events:
            return
        stamp = b"%.3f" % born_s
        numbers = range(self._published, self._published + events)
        cut = (self._cut[number % _TEMPLATES] for number in numbers)
        await sender.send_batch([Message(before + stamp + after) for before, after in cut])
        self._published += events

    def _watch(self) -> None:
        following = 0
        with open_log_reader(self.url, self.config.results) as reader:
            while not self._stop.wait(_TICK_S):
                try:
                    end = reader.bounds(0)[1]
                except NoSuchChannel:
                    continue
                now_s = time.time()
                for chunk in reader.read_bodies(0, following, end):
                    for body in chunk.bodies:
                        born_s = entry.decode(body).rows[self.config.event_time].to_numpy()
                        if born_s.size:
                            self._seen.append((now_s, born_s))
                            self._results += born_s.size
                following = end


def _around_time(body: bytes) -> tuple[bytes, bytes]:
    at = body.index(_TIME) + len(_TIME)
    return body[:at], body[at + _TIME_BYTES :]
