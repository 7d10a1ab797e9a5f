"""One process of a pipeline whose lanes are applications of their own:

    python -m flyball.pipeline.run.worker ROLE SPEC

ROLE is splitter, lane-0, lane-1 …, combiner or rules; SPEC is a JSON file that describes the pipeline.
It runs until SIGTERM or until its parent process ends. Killed at any point, it continues where it was when it is
started again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import FlyballError
from flyball.pipeline.combine.combiner import Combiner, CombinerSettings
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import rules_name
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.run.failure_codes import kind_of
from flyball.pipeline.run.polling import POLL_S
from flyball.pipeline.run.queries import FailedForGood, Queries
from flyball.pipeline.run.session import spark_session
from flyball.pipeline.run.supervisor import BROKER_AWAY, FOR_GOOD, say_ready
from flyball.pipeline.split.splitter import Splitter, SplitterSettings
from flyball.pipeline.telemetry import LoopRecordFile
from flyball.pipeline.tier1.monitor import monitor_name
from flyball.pipeline.tier1.result_queues import Lanes
from flyball.pipeline.tier1.stage import TierOne
from flyball.pipeline.tier2.stage import TierTwo
from flyball.processes.process import OwnProcess, start_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPLITTER, COMBINER, RULES = "splitter", "combiner", "rules"
_LANE = "lane-"
_STATUS_BYTES = 1 << 20
# A lane's batch has no shuffle that could be planned anew while it runs: trying takes a tenth of a small batch.
_LANE_SETTINGS = {"spark.sql.adaptive.enabled": "false"}
_NONE: Mapping[str, str] = MappingProxyType({})


class _Stopped(BaseException):
    """SIGTERM came. Not an Exception: whatever is under way must not take it for a failure of its own."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The pipeline that a worker is part of. `path`: Python's module path, with the config's folder. `settings`:
    options of spark-submit."""

    url: str
    config: PipelineConfig
    folder: Path
    path: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        document = {
            "url": self.url,
            "config": self.config.model_dump(mode="json"),
            "folder": str(self.folder),
            "path": list(self.path),
            "settings": dict(self.settings),
        }
        file.write_text(json.dumps(document))

    @classmethod
    def load(cls, file: Path) -> WorkerSpec:
        document = json.loads(file.read_text())
        path = tuple(document["path"])
        sys.path.extend(place for place in path if place not in sys.path)
        config = PipelineConfig.model_validate(document["config"])
        return cls(document["url"], config, Path(document["folder"]), path, document["settings"])


def lane_role(lane: int) -> str:
    return f"{_LANE}{lane}"


def command(role: str, order: Path) -> list[str]:
    return [sys.executable, "-m", "flyball.pipeline.run.worker", role, str(order)]


def _split(order: WorkerSpec, stack: ExitStack) -> Callable[[], None]:
    on_record = LoopRecordFile(str(_telemetry(order)))
    splitter = Splitter(order.url, _sinks(order, stack), SplitterSettings.of(order.config), on_record=on_record)
    stack.callback(splitter.close)
    splitter.open()

    def work() -> None:
        splitter.step()
        if not splitter.behind:
            time.sleep(order.config.lanes.tick_s)

    return work


def _combine(order: WorkerSpec, stack: ExitStack) -> Callable[[], None]:
    # Lane 0 is always there; whoever else is, its entries say.
    settings = CombinerSettings.of(order.config)
    combiner = Combiner(order.url, _sinks(order, stack), settings, order.folder / "held", [0])
    stack.callback(combiner.stop)
    combiner.open()

    def work() -> None:
        if not combiner.step():
            time.sleep(POLL_S / 2)

    return work


def _lane(order: WorkerSpec, stack: ExitStack, lane: int) -> Callable[[], None]:
    config, name = order.config, lane_role(lane)
    sinks = _sinks(order, stack)
    lanes = Lanes(sinks, order.url, config.results, config.lanes.queue_bytes)
    lanes.open(lane)
    monitor = f"{monitor_name(config.results)}.{name}"
    tier1 = TierOne(order.url, config, sinks, lanes, name, monitor)
    tier1.open()
    queries = _queries(order, stack, name, _LANE_SETTINGS)
    tier1.start(queries, config.lanes.tasks, lane=lane, telemetry=str(_telemetry(order)))
    cores = config.lanes.cores[lane % len(config.lanes.cores)] if config.lanes.cores else ()
    pinned = not cores

    def work() -> None:
        nonlocal pinned
        queries.check()
        # Starting on one core alone takes several times as long: it is given up when the first batch is done.
        if not pinned and queries.progress(name):
            _pin(cores)
            pinned = True
        time.sleep(POLL_S)

    return work


def _run_rules(order: WorkerSpec, stack: ExitStack) -> Callable[[], None]:
    config = order.config
    sinks = _sinks(order, stack)
    rules = TierTwo(order.url, config, sinks, lambda _alert: None)
    rules.open()
    status = rules_name(config.results)
    sinks.add(status, None, max_bytes=_STATUS_BYTES)
    sinks.declare(config.results)
    queries = _queries(order, stack, RULES)
    rules.start(queries)
    results = stack.enter_context(open_log_reader(order.url, config.results))
    through = -1

    def work() -> None:
        nonlocal through
        queries.check()
        end = results.bounds(0)[1]
        if end > through:
            queries.finish()
            through = end
            sinks.append_unsequenced(status, json.dumps({"through": through}).encode())
        time.sleep(POLL_S)

    return work


def _telemetry(order: WorkerSpec) -> Path:
    """What all loops of the pipeline did."""
    return order.folder / "loops.db"


def _sinks(order: WorkerSpec, stack: ExitStack) -> LogSinks:
    sinks = LogSinks(order.url)
    sinks.open()
    stack.callback(sinks.close)
    return sinks


def _queries(order: WorkerSpec, stack: ExitStack, name: str, settings: Mapping[str, str] = _NONE) -> Queries:
    """Spark, for this process alone; its checkpoints are in a folder of its own."""
    folder = order.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    # On a cluster an application takes every core it can get, and the next one would wait for ever.
    limits = {**order.settings, "spark.cores.max": str(order.config.lanes.tasks), **settings}
    session: SparkSession = spark_session(f"flyball-{name}", order.config.master, limits, workdir=folder)
    stack.callback(session.stop)
    queries = Queries(session, order.url, order.config, folder, LoopRecordFile(str(_telemetry(order))))
    stack.callback(queries.stop)
    return queries


def _pin(cores: tuple[int, ...]) -> None:
    """Keep this process and all that it started, thread by thread, on some cores; what they start follows them."""
    me = OwnProcess(os.getpid(), start_time(os.getpid()) or "")
    for process in me.session():
        for thread in Path(f"/proc/{process.pid}/task").glob("*"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)


def _stop(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise _Stopped


def main(role: str, order_file: str) -> int:
    signal.signal(signal.SIGTERM, _stop)
    starter = os.getppid()
    try:
        order = WorkerSpec.load(Path(order_file))
        with ExitStack() as stack:
            if role.startswith(_LANE):
                work = _lane(order, stack, int(role.removeprefix(_LANE)))
            else:
                work = {SPLITTER: _split, COMBINER: _combine, RULES: _run_rules}[role](order, stack)
            say_ready()
            while os.getppid() == starter:
                work()
            return 0
    except _Stopped:
        return 0
    except FlyballError as error:
        sys.stderr.write(f"flyball: {role}: {error}\n")
        if kind_of(error).is_outage:
            return BROKER_AWAY
        return FOR_GOOD if isinstance(error, FailedForGood) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
