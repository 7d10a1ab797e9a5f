"""Run source → publisher → broker → pipeline → alerts, for `flyball run` and `flyball demo`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.app.config import NoSource, QueueSource, RunConfig
from flyball.futures import wait_at_most
from flyball.pipeline.audit import Audit, audit
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.run.open import Pipeline
from flyball.pipeline.source.spool import Spooler
from flyball.pipeline.tier1.monitor import latest_values
from flyball.publisher.feed import Events, Feed, FeedProgress

if TYPE_CHECKING:
    from flyball.demo.consumer import ConsumerSummary
    from flyball.demo.group import GroupSummary
    from flyball.demo.load import DemoSummary

_REPORT_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    audit: Audit
    seconds: float
    first_alert_s: float | None
    loops: int
    """Control loops that ran."""
    finished: bool
    """False: stopped by a signal or by the time limit while input was left."""
    publisher: dict[str, Any] | None
    """Figures of the publisher's loop at the end; None: other programs published."""
    consumer: ConsumerSummary | None = None
    """Figures of the demo's consumer; None outside the demo."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Last values of the pipeline's monitors."""
    group: GroupSummary | None = None
    """What the demo's group did; None outside the demo."""


class Progress:
    """Reports what happens, with the seconds since the start; `note` prints one line."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._started = time.monotonic()
        self._last_report = self._started
        self.alerts = 0
        self.first_alert_s: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        self._note(f"{self.seconds:6.1f} s  {text}")

    def alert(self, message: dict[str, Any]) -> None:
        self.alerts += 1
        self.first_alert_s = self.seconds if self.first_alert_s is None else self.first_alert_s
        self.say(f"ALERT {message['rule']}: {message['text']}")

    def report(self, text: str) -> None:
        """Say it, at most once every two seconds."""
        if time.monotonic() - self._last_report >= _REPORT_EVERY_S:
            self._last_report = time.monotonic()
            self.say(text)


async def run(
    config: RunConfig,
    folder: Path,
    note: Callable[[str], None],
    *,
    feed_for_s: float | None = None,
    with_demo_load: bool = False,
) -> Outcome:
    """Run until the input ends (the source is read for `feed_for_s` at most) or a signal comes.

    `note` prints one line of progress. `with_demo_load`: run the demo's consumer, group and CPU load as well.
    """
    folder.mkdir(parents=True, exist_ok=True)
    url = config.url(folder)
    progress = Progress(note)
    pipeline = Pipeline(url, config.pipeline, folder, progress.alert)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    progress.say("starting Spark; events are published meanwhile")
    starting = asyncio.create_task(asyncio.to_thread(pipeline.start))
    feeding = asyncio.create_task(_feed(config, url, stop, progress, pipeline, feed_for_s))
    draining: asyncio.Task[None] | None = None
    demo_load: asyncio.Task[DemoSummary] | None = None
    input_ended = asyncio.Event()
    try:
        await started(starting, feeding, progress.say)
        progress.say("Spark is ready: tier 1 and the rules are running")
        if with_demo_load:
            from flyball.demo.load import run_demo_load

            demo_load = asyncio.create_task(
                run_demo_load(url, config.pipeline.input, folder, input_ended, progress.say)
            )
        while not feeding.done():
            await asyncio.wait([feeding], timeout=1.0)
            pipeline.check()
        await feeding
        complete = not stop.is_set()
        if complete:
            progress.say("end of the input: closing all windows")
            draining = asyncio.create_task(asyncio.to_thread(pipeline.drain))
            complete = await done_before(draining, stop)
    finally:
        stop.set()
        input_ended.set()
        await asyncio.gather(starting, feeding, return_exceptions=True)
        stopping = asyncio.create_task(asyncio.to_thread(pipeline.stop))
        if draining is not None:
            await asyncio.gather(draining, return_exceptions=True)  # it ends when the pipeline stops
        if demo_load is not None:
            await asyncio.wait([demo_load])
        await stopping
    progress.say("stopped; counting the messages in the logs")
    counts = await asyncio.to_thread(audit, url, config.pipeline, pipeline.totals, complete=complete)
    publisher = feeding.result()
    demo = None if demo_load is None else demo_load.result()
    loops = config.pipeline.lanes.loops + (publisher is not None) + (demo is not None)
    thresholds = await asyncio.to_thread(_thresholds, url, config.pipeline)
    return Outcome(
        counts,
        progress.seconds,
        progress.first_alert_s,
        loops,
        complete,
        publisher,
        consumer=None if demo is None else demo.consumer,
        thresholds=thresholds,
        group=None if demo is None else demo.group,
    )


async def started(
    starting: asyncio.Future[None], feeding: asyncio.Future[Any], say: Callable[[str], None]
) -> None:
    """Wait until the pipeline runs. A source that fails before is reported at once, for Spark starts slowly."""
    await asyncio.wait([starting, feeding], return_when=asyncio.FIRST_COMPLETED)
    if feeding.done() and (error := feeding.exception()) is not None:
        say(f"the source failed, so this run stops as soon as Spark has started: {error}")
        raise error
    await starting


async def done_before(work: asyncio.Future[None], stop: asyncio.Event) -> bool:
    """Wait for the work; False: a signal came first, and the work is still under way."""
    stopped: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
    either: list[asyncio.Future[Any]] = [work, stopped]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if not work.done():
        return False
    await work
    return True


def _thresholds(url: str, config: PipelineConfig) -> Mapping[str, float]:
    return latest_values(url, config.results) if config.monitors else {}


async def _feed(
    config: RunConfig,
    url: str,
    stop: asyncio.Event,
    progress: Progress,
    pipeline: Pipeline,
    feed_for_s: float | None,
) -> dict[str, Any] | None:
    """Publish the source; return the figures of the publisher's loop, or None if other programs publish."""
    if isinstance(config.source, NoSource):
        while not stop.is_set() and not (config.pipeline.upstream and pipeline.ended):
            with contextlib.suppress(TimeoutError):
                await wait_at_most(stop.wait(), 1.0)
        return None
    if isinstance(config.source, QueueSource):
        await Spooler(config.source.url, config.source.queue, url, config.pipeline.input).run(stop)
        return None
    deadline = None if feed_for_s is None else time.monotonic() + feed_for_s
    events = _until(config.source.bodies(), deadline)
    feed = Feed(config.pipeline.input, events, END_OF_INPUT, per_second=config.source.per_second)
    state: FeedProgress | None = None
    async for state in feed.run(url, stop):
        done = (await asyncio.to_thread(lambda: pipeline.totals)).events_in
        progress.report(f"{state.events:,} events published, {done:,} through tier 1, {progress.alerts} alerts")
    return None if state is None else state.publisher.as_row()


def _until(events: Events, deadline: float | None) -> Events:
    """The same events, ending at the deadline."""

    def from_number(first: int) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: deadline is None or time.monotonic() < deadline, events(first))

    return from_number
