"""The process runner: a splitter, each lane as a Spark application of its own, a combiner, and tier 2.

    input log → splitter → ticks → lanes → result queues → combiner → results log, in order → rules → alert log

They exchange data through logs of the broker only, and each continues from there after kill -9. This object starts
and watches them, adds and removes lanes, and ends them. It runs the sinks itself.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import BrokerError, NoSuchChannel, Unreachable
from flyball.errors import InvalidValue
from flyball.file_lock import lock_file
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import (
    LanesRequest,
    Level,
    QueueLevels,
    lanes_name,
    last_bodies,
    requested_lanes,
    rules_name,
)
from flyball.pipeline.logs.totals import Totals
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy.positions import have_reached
from flyball.pipeline.run.checks import check_broker_reach, check_lane_count, check_partitions
from flyball.pipeline.run.polling import POLL_S, PipelineStopped, wait_until
from flyball.pipeline.run.queries import PipelineFailed
from flyball.pipeline.run.spark_submit import is_submitted, leave_gateway, submitted_settings
from flyball.pipeline.run.supervisor import Supervisor
from flyball.pipeline.run.worker import COMBINER, RULES, SPLITTER, WorkerSpec, command, lane_role
from flyball.pipeline.sinks import Sinks
from flyball.pipeline.split.splitter import declare_ticks
from flyball.pipeline.split.ticks import Tick, ticks_name
from flyball.pipeline.tier2.alert_tail import AlertTail
from flyball.pipeline.tier2.stage import AlertHandler, TierTwo

_COUNT_S = 0.5


class ProcessPipeline:
    """A running pipeline of processes. The same folder and broker continue the same run."""

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        folder: Path,
        on_alert: AlertHandler = lambda _alert: None,
    ) -> None:
        check_broker_reach(url, config.master)
        self._url, self._config, self._folder = url, config, folder.absolute()
        self._sinks = LogSinks(url)
        self._levels = QueueLevels(url, config.results)
        self._supervisor = Supervisor(self._folder / "processes")
        self._order = self._folder / "processes" / "order"
        self._alerts = AlertTail(url, config, on_alert)
        self._rules = TierTwo(url, config, self._sinks, on_alert)
        self._written = Sinks(url, config, self._folder, self._sinks)
        self._lock: IO[bytes] | None = None
        self._begun = False
        self._stopping = threading.Event()
        self._submitter = os.getppid() if is_submitted() else None
        self._reading = threading.Lock()
        self._counted_s = float("-inf")
        self._totals = Totals()

    def start(self) -> None:
        """Start all processes at the same time, and wait until each has begun its work."""
        config = self._config
        self._folder.mkdir(parents=True, exist_ok=True)
        self._own_folder()
        self._sinks.open()  # creates an embedded broker
        check_partitions(self._url, config, range(config.lanes.count))
        self._sinks.declare(config.input)
        self._sinks.add(lanes_name(config.results), None)
        declare_ticks(self._sinks, config.results)
        self._rules.open()
        self._begun = True
        self._supervisor.open()
        settings = submitted_settings()
        leave_gateway()
        WorkerSpec(self._url, config, self._folder, tuple(sys.path), settings).save(self._order)
        self._alerts.start()
        lanes = {*range(self._requested_lanes()), *self._unfinished()}
        names = [*map(lane_role, sorted(lanes)), *([RULES] if config.rules else []), COMBINER, SPLITTER]
        self._run(names)
        self._written.start()

    @property
    def ended(self) -> bool:
        """Everything up to the end of the input has been put in order."""
        with open_log_reader(self._url, self._config.results) as reader, suppress(NoSuchChannel):
            return any(entry.header_of(body)["ends"] for body in last_bodies(reader, 1))
        return False

    @property
    def totals(self) -> Totals:
        """Where the events went whose results are in the result queues; looked up now and then while it runs."""
        now_s = time.monotonic()
        if self._begun and now_s - self._counted_s >= _COUNT_S:
            self._counted_s = now_s
            with suppress(Unreachable):  # the last ones are good enough while the broker is away
                self._totals = Totals.of([level.totals for level in self._read(self._lanes_so_far())])
        return self._totals

    def pids(self) -> dict[str, int]:
        """Process ids of the parts that run now, by role: splitter, lane-0 …, combiner, rules."""
        return self._supervisor.pids()

    def restarts(self) -> dict[str, int]:
        """How often each part had to be started again."""
        return self._supervisor.restarts()

    def set_lanes(self, count: int) -> None:
        """Run so many lanes; returns when they share the input and those that leave have delivered everything."""
        check_lane_count(count)
        check_partitions(self._url, self._config, range(count))
        self._run([lane_role(lane) for lane in range(count)])
        since = self._last_tick()
        self._request(lanes=count)
        tick = self._tick_when(lambda tick: len(tick.members) == count)
        leaving = [lane for lane in tick.assigned_events if lane not in tick.members]
        wait_until(lambda: all(self._has_left(lane, since) for lane in leaving), self._check_waiting)
        self._supervisor.stop([lane_role(lane) for lane in leaving])

    def set_balance(self, balance: bool) -> None:
        """Share events by the lanes' delays from now on, or in equal parts."""
        self._request(balance=balance)

    def check(self) -> None:
        """Raise if a part failed again and again."""
        if self._submitter is not None and os.getppid() != self._submitter:
            raise PipelineFailed("spark-submit, which ran this pipeline, has ended: start it again to continue")
        self._supervisor.check()
        self._alerts.check()
        self._written.check()

    def _check_waiting(self) -> None:
        """While somebody waits, who would wait for ever when the pipeline is stopped."""
        if self._stopping.is_set():
            raise PipelineStopped("the pipeline was stopped before everything had passed through")
        self.check()

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""
        with open_log_reader(self._url, self._config.input) as reader:
            goal = [reader.bounds(partition) for partition in range(reader.partitions())]
        tick = self._tick_when(lambda tick: have_reached(tick.next, goal))
        wait_until(lambda: all(self._delivered(tick)), self._check_waiting)
        wait_until(
            lambda: not any(level.queued_bytes for level in self._read(self._lanes_so_far())), self._check_waiting
        )
        if self._config.rules:
            with open_log_reader(self._url, self._config.results) as reader:
                end = reader.bounds(0)[1]
            wait_until(lambda: self._rules_offset() >= end, self._check_waiting)
            self._alerts.drain()
        if self.ended:
            self._rules.end_feeds()
        self._written.drain()

    def stop(self) -> None:
        self._stopping.set()
        self._supervisor.close()
        self._alerts.stop()
        self._written.stop()
        self._counted_s = float("-inf")
        with suppress(BrokerError):  # it was broken off, perhaps for that very reason
            self._totals = self.totals
        self._begun = False
        self._levels.close()
        self._sinks.close()
        if self._lock is not None:
            self._lock.close()

    def _own_folder(self) -> None:
        try:
            self._lock = lock_file(self._folder / "lock", wait=False)
        except BlockingIOError:
            raise InvalidValue(
                f"the folder {self._folder} is in use by a pipeline that runs: stop it, or choose another folder"
            ) from None

    def _run(self, names: list[str]) -> None:
        for name in names:
            self._supervisor.start(name, command(name, self._order))
        wait_until(lambda: all(self._supervisor.is_ready(name) for name in names), self._check_waiting)

    def _tick_when(self, reached: Callable[[Tick], bool]) -> Tick:
        """The first of the newest ticks for which this is true."""
        while (tick := self._last_tick()) is None or not reached(tick):
            self._check_waiting()
            time.sleep(POLL_S)
        return tick

    def _request(self, **changes: Any) -> None:
        with open_log_reader(self._url, lanes_name(self._config.results)) as reader:
            wanted = replace(LanesRequest.read(reader), **changes)
        self._sinks.append_unsequenced(lanes_name(self._config.results), wanted.to_json())

    def _requested_lanes(self) -> int:
        with open_log_reader(self._url, lanes_name(self._config.results)) as reader:
            return requested_lanes(reader, self._config.lanes.count)

    def _read(self, lanes: Sequence[int]) -> list[Level]:
        with self._reading:  # drain() and totals may be asked by two threads
            return self._levels.read(lanes)

    def _last_tick(self) -> Tick | None:
        with open_log_reader(self._url, ticks_name(self._config.results)) as reader:
            return next((Tick.from_json(body) for body in last_bodies(reader, 1)), None)

    def _lanes_so_far(self) -> list[int]:
        tick = self._last_tick()
        return [] if tick is None else sorted(tick.assigned_events)

    def _unfinished(self) -> list[int]:
        """Lanes that are leaving and have not delivered everything assigned to them."""
        tick = self._last_tick()
        lanes = [] if tick is None else sorted(set(tick.assigned_events) - set(tick.members))
        return [lane for lane in lanes if not self._read([lane])[0].last]

    def _has_left(self, lane: int, since: Tick | None) -> bool:
        """Whether what it was given after the tick `since`, up to its last, is in its queue."""
        (level,) = self._read([lane])
        at = since.number if since is not None and lane in since.members else -1
        return level.last and level.tick is not None and level.tick > at

    def _delivered(self, tick: Tick) -> list[bool]:
        """Whether every lane's results up to that tick are in its queue."""
        levels = self._read(tick.members)
        return [level.tick is not None and level.tick >= tick.number for level in levels]

    def _rules_offset(self) -> int:
        """Offset in the results log up to which the rules have evaluated everything."""
        with open_log_reader(self._url, rules_name(self._config.results)) as reader:
            try:
                return max((int(json.loads(body)["through"]) for body in last_bodies(reader, 1)), default=-1)
            except NoSuchChannel:
                return -1
