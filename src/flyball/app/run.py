"""The whole line, source → publisher → broker → pipeline → alerts, for `flyball run` and `flyball demo`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, field_validator

from flyball.brokers.url import BrokerUrl
from flyball.cli.output import note
from flyball.demo import events as demo_events
from flyball.demo.consumer import Consumed, consume_at_goals
from flyball.demo.cpu_load import start_hog
from flyball.pipeline.audit import Audit, audit
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.open import Pipeline
from flyball.pipeline.source.spool import Spooler
from flyball.pipeline.tier1.monitor import latest_values
from flyball.publisher.feed import Events, Fed, Feed
from flyball.strict_model import StrictModel

_REPORT_EVERY_S = 2.0
_CALM_S, _HOG_S = 2.0, 5.0


class DemoSource(StrictModel):
    """Generated events: DNS queries and host measurements."""

    kind: Literal["demo"]
    seed: int = 1
    events: Annotated[int | None, Field(ge=0)] = None
    per_second: Annotated[float | None, Field(gt=0)] = 2000.0

    def bodies(self) -> Events:
        def from_number(first: int) -> Iterator[bytes]:
            left = None if self.events is None else max(0, self.events - first)
            return demo_events.events(self.seed, first, left)

        return from_number


class FileSource(StrictModel):
    """One event a line."""

    kind: Literal["file"]
    path: Path
    per_second: Annotated[float | None, Field(gt=0)] = None

    def bodies(self) -> Events:
        def from_number(first: int) -> Iterator[bytes]:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines):
                    if number >= first:
                        yield line.rstrip(b"\r\n")

        return from_number


class QueueSource(StrictModel):
    """Messages of a queue, which are moved to the input log; the run ends by a signal."""

    kind: Literal["queue"]
    url: Annotated[str, Field(description="Broker of the queue, such as amqp://localhost/")]
    queue: Annotated[str, Field(min_length=1)]

    @field_validator("url")
    @classmethod
    def _has_queues(cls, url: str) -> str:
        scheme = BrokerUrl.parse(url).scheme
        if scheme not in ("amqp", "amqps", "sqlite"):
            raise ValueError(f"{scheme}:// has no queues; use amqp://, amqps:// or sqlite:///…")
        return url


class NoSource(StrictModel):
    """Somebody else fills the input log; the run ends by a signal, or when pipelines that feed it have ended."""

    kind: Literal["none"]


Source: TypeAlias = Annotated[DemoSource | FileSource | QueueSource | NoSource, Field(discriminator="kind")]


class LineConfig(StrictModel):
    """A run: where the events come from, where they are kept, what is done with them."""

    folder: Annotated[Path, Field(description="Keeps logs and checkpoints; relative to the config file")] = Path(
        "flyball-data"
    )
    broker: Annotated[str | None, Field(description="Broker URL; by default an embedded one in the folder")] = None
    source: Source
    pipeline: PipelineConfig

    def url(self, folder: Path) -> str:
        return self.broker or f"sqlite:///{folder.absolute() / 'broker.db'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    audit: Audit
    seconds: float
    first_alert_s: float | None
    loops: int
    """Control loops that were at work."""
    finished: bool
    """False: stopped by a signal or by the time limit while input was left."""
    publisher: dict[str, Any] | None
    """What the publisher's loop had found at the end; None: somebody else published."""
    consumed: Consumed | None = None
    """What a consumer of the events has to say, where one ran beside."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Last values of the pipeline's monitors."""


class Narrator:
    """Tells on standard error what happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last_report = self._started
        self.alerts = 0
        self.first_alert_s: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        note(f"{self.seconds:6.1f} s  {text}")

    def alert(self, message: dict[str, Any]) -> None:
        self.alerts += 1
        self.first_alert_s = self.seconds if self.first_alert_s is None else self.first_alert_s
        self.say(f"ALERT {message['rule']}: {message['text']}")

    def report(self, text: str) -> None:
        """Say it, but not more often than every two seconds."""
        if time.monotonic() - self._last_report >= _REPORT_EVERY_S:
            self._last_report = time.monotonic()
            self.say(text)


async def run_line(
    config: LineConfig, folder: Path, feed_for_s: float | None = None, *, company: bool = False
) -> Outcome:
    """Run until the input is used up (after `feed_for_s` at the latest) or a signal comes.

    `company`: meanwhile a consumer reads the events at goals that change, and a hog takes a core for a while.
    """
    folder.mkdir(parents=True, exist_ok=True)
    url = config.url(folder)
    narrator = Narrator()
    pipeline = Pipeline(url, config.pipeline, folder, narrator.alert)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    narrator.say("starting Spark; events are published meanwhile")
    starting = asyncio.create_task(asyncio.to_thread(pipeline.start))
    feeding = asyncio.create_task(_feed(config, url, stop, narrator, pipeline, feed_for_s))
    consuming: asyncio.Task[Consumed] | None = None
    disturbing: asyncio.Task[None] | None = None
    over = asyncio.Event()
    try:
        await starting
        narrator.say("Spark is ready: tier 1 and the rules are running")
        if company:
            disturbing = asyncio.create_task(_disturb(narrator.say))
            consuming = asyncio.create_task(consume_at_goals(url, config.pipeline.input, over, narrator.say))
        while not feeding.done():
            await asyncio.wait([feeding], timeout=1.0)
            pipeline.check()
        await feeding
        complete = not stop.is_set()
        if complete:
            narrator.say("end of the input: closing all windows")
            await asyncio.to_thread(pipeline.drain)
    finally:
        stop.set()
        over.set()
        await asyncio.gather(starting, feeding, return_exceptions=True)
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.wait([disturbing])
        stopping = asyncio.create_task(asyncio.to_thread(pipeline.stop))
        if consuming is not None:
            await asyncio.wait([consuming])
        await stopping
    narrator.say("stopped; counting what the logs hold")
    found = await asyncio.to_thread(audit, url, config.pipeline, pipeline.totals, complete=complete)
    publisher = feeding.result()
    consumed = None if consuming is None else consuming.result()
    loops = config.pipeline.lanes.loops + (publisher is not None) + (consumed is not None)
    thresholds = await asyncio.to_thread(_thresholds, url, config.pipeline)
    return Outcome(
        found, narrator.seconds, narrator.first_alert_s, loops, complete, publisher, consumed, thresholds
    )


def _thresholds(url: str, config: PipelineConfig) -> Mapping[str, float]:
    return latest_values(url, config.results) if config.monitors else {}


async def _disturb(say: Callable[[str], None]) -> None:
    """Take a core away for a while, as another program on the machine would."""
    await asyncio.sleep(_CALM_S)
    say(f"a hog takes a core for {_HOG_S:g} s: batches take longer, and nothing may be lost")
    hog = start_hog(_HOG_S)
    try:
        while hog.poll() is None:
            await asyncio.sleep(0.1)
        say("the hog has gone")
    finally:
        hog.kill()
        hog.wait()


async def _feed(
    config: LineConfig,
    url: str,
    stop: asyncio.Event,
    narrator: Narrator,
    pipeline: Pipeline,
    feed_for_s: float | None,
) -> dict[str, Any] | None:
    """Publish the source; what the publisher's loop had found at the end."""
    if isinstance(config.source, NoSource):
        while not stop.is_set() and not (config.pipeline.fed_by and pipeline.ended):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), timeout=1.0)
        return None
    if isinstance(config.source, QueueSource):
        await Spooler(config.source.url, config.source.queue, url, config.pipeline.input).run(stop)
        return None
    deadline = None if feed_for_s is None else time.monotonic() + feed_for_s
    events = _until(config.source.bodies(), deadline)
    feed = Feed(config.pipeline.input, events, END_OF_INPUT, per_second=config.source.per_second)
    fed: Fed | None = None
    async for fed in feed.run(url, stop):
        done = (await asyncio.to_thread(lambda: pipeline.totals)).events_in
        narrator.report(f"{fed.events:,} events published, {done:,} through tier 1, {narrator.alerts} alerts")
    return None if fed is None else fed.publisher.as_row()


def _until(events: Events, deadline: float | None) -> Events:
    """The same events, ending when the time is over."""

    def from_number(first: int) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: deadline is None or time.monotonic() < deadline, events(first))

    return from_number
