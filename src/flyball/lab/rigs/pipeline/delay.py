"""A running pipeline, a thread that publishes to it at a rate, and a thread that measures when results arrive.

Events carry the time at which they were published; their age when they are in the results log, in order, is their
delay. The number of results that the published events will make is counted here, so that what the pipeline has
*finished* is known without its help.

A few events a second are always published: only later events advance the watermark, without them the last results
would wait for ever.
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
_BATCH = 5_000
_BURST_S = 3.0
_TIMEOUT_S = 180.0
_TIME = b'"event_time":'
_TIME_BYTES = 14


class PipelineStalled(FlyballError, TimeoutError):
    """The pipeline did not finish the published events in a reasonable time."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of the events whose results came in a span of time. `growth`: of the mean, in seconds a second."""

    p50_s: float
    p99_s: float
    growth: float

    def __str__(self) -> str:
        return f"p50 {self.p50_s:.2f} s, p99 {self.p99_s:.2f} s, growing by {self.growth:.3f} s/s"


class DelayRig:
    """A context manager that runs the pipeline. `rate`: events a second to publish, at least a trickle."""

    def __init__(self, folder: Path, config: PipelineConfig, seed: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.config = folder, config
        self.url = f"sqlite:///{folder / 'broker.db'}"
        self.pipeline = Pipeline(self.url, config, folder)
        self.rate = 0.0
        templates = list(load.bodies(_TEMPLATES, seed))
        # Split beforehand around the event time: publishing must not take CPU from the lanes.
        self._cut = [_around_time(body) for body in templates]
        passed = [load.passes(body) for body in templates]
        self._passed = np.concatenate([[0], np.cumsum(passed)])
        self._published = 0
        self._burst = 0
        """Events that are still to be published at once."""
        self._results = 0
        self._arrivals: list[tuple[float, Array]] = []
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
        """Wait until every lane has finished that many batches, small ones, since hardly any events come.

        The fixed cost of a batch falls by half meanwhile: Java's compiler needs that many repetitions.
        """
        levels = QueueLevels(self.url, self.config.results)
        self._until(
            lambda: min(level.batch for level in levels.read(lanes)) >= batches, f"{batches} batches of every lane"
        )
        levels.close()

    def publish(self, events: int) -> None:
        """Publish that many events at once, besides `rate`; return when all of them are in the input log."""
        self._burst = events
        while self._burst:
            self.pipeline.check()
            time.sleep(_TICK_S)

    def wait_for(self, share: float) -> None:
        """Wait until that share of everything published so far is finished."""
        goal = share * self._expected()
        self._until(lambda: self._results >= goal, f"{goal:.0f} results")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not done():
            self.pipeline.check()
            if time.monotonic() > deadline_s:
                raise PipelineStalled(f"{what} did not come in {_TIMEOUT_S:.0f} s; see {self.folder}/processes")
            time.sleep(_TICK_S)

    def lanes_per_s(self, lanes: Sequence[int], seconds: float) -> float:
        """Measure the events a second that these lanes finish, from the events and the time of each batch.

        The ordered results would show the rate of the slowest lane only.
        """
        events, seconds_by_lane = dict.fromkeys(lanes, 0), dict.fromkeys(lanes, 0.0)
        levels = QueueLevels(self.url, self.config.results)
        last_batch = {lane: level.batch for lane, level in zip(lanes, levels.read(lanes), strict=True)}
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(_TICK_S)
            for lane, level in zip(lanes, levels.read(lanes), strict=True):
                if level.batch != last_batch[lane] and level.cycle is not None:
                    last_batch[lane] = level.batch
                    events[lane] += level.cycle[0]
                    seconds_by_lane[lane] += level.cycle[1]
        levels.close()
        if not all(seconds_by_lane.values()):
            raise PipelineStalled(f"a lane finished no batch in {seconds:.0f} s; see {self.folder}/processes")
        return sum(events[lane] / seconds_by_lane[lane] for lane in lanes)

    def delays(self, since_s: float, until_s: float) -> Delays:
        """Delays of the results that came in between."""
        came = [(came_s, came_s - born_s) for came_s, born_s in self._arrivals if since_s <= came_s < until_s]
        if len({came_s for came_s, _ in came}) < 2:
            # Missing results are at least as late as the span is long: they must not look good.
            return Delays(until_s - since_s, until_s - since_s, 1.0)
        every = np.concatenate([delays for _, delays in came])
        at = np.array([came_s for came_s, _ in came])
        growth = float(np.polyfit(at - at[0], [float(delays.mean()) for _, delays in came], 1)[0])
        return Delays(float(np.percentile(every, 50)), float(np.percentile(every, 99)), growth)

    def _expected(self) -> int:
        """Number of results of everything that was published."""
        rounds, rest = divmod(self._published, _TEMPLATES)
        return int(rounds * self._passed[-1] + self._passed[rest])

    def _publish(self) -> None:
        asyncio.run(self._publish_events())

    async def _publish_events(self) -> None:
        async with await connect(self.url) as broker:
            await broker.declare(self.config.input, "log")
            sender = await broker.sender(self.config.input)
            due, last_s = 0.0, time.time()
            while not self._stop.is_set():
                await asyncio.sleep(_TICK_S)
                now_s = time.time()
                due += max(self.rate, _TRICKLE_PER_S) * (now_s - last_s)
                last_s, events = now_s, int(due)
                due -= events
                await self._send(sender, events, now_s)
                all_at_once = self._burst
                while self._burst and not self._stop.is_set():
                    part = min(_BATCH, self._burst)
                    # As if they had come in the last seconds, so that none is late.
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
        next_offset = 0
        with open_log_reader(self.url, self.config.results) as reader:
            while not self._stop.wait(_TICK_S):
                try:
                    end = reader.bounds(0)[1]
                except NoSuchChannel:
                    continue
                now_s = time.time()
                for chunk in reader.read_bodies(0, next_offset, end):
                    for body in chunk.bodies:
                        born_s = entry.decode(body).rows[self.config.event_time].to_numpy()
                        if born_s.size:
                            self._arrivals.append((now_s, born_s))
                            self._results += born_s.size
                next_offset = end


def _around_time(body: bytes) -> tuple[bytes, bytes]:
    at = body.index(_TIME) + len(_TIME)
    return body[:at], body[at + _TIME_BYTES :]
