"""The inline runner: the pipeline as a whole, on one Spark session:

    input log → tier 1 (lanes) → result queues → combiner → results log, in order → tier 2 (rules) → alert log

Tier 1 and each rule are streaming queries with checkpoints of their own; the combiner keeps its state in the
results log. Each of them takes a repeated batch only once, so a pipeline that was killed anywhere continues where
it was and ends with the same results and alerts.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import InvalidValue
from flyball.pipeline.combine.combiner import Combiner, CombinerSettings
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import LanesRequest, lanes_name
from flyball.pipeline.logs.totals import Totals
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy.positions import have_reached
from flyball.pipeline.run.checkpoint import last_offset
from flyball.pipeline.run.checks import check_broker_reach, check_lane_count, check_partitions
from flyball.pipeline.run.polling import PipelineStopped, wait_until
from flyball.pipeline.run.queries import Queries
from flyball.pipeline.run.session import spark_session
from flyball.pipeline.sinks import Sinks
from flyball.pipeline.tier1.monitor import monitor_name
from flyball.pipeline.tier1.result_queues import Lanes
from flyball.pipeline.tier1.stage import TierOne
from flyball.pipeline.tier2.stage import AlertHandler, TierTwo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIER1 = "tier1"


class InlinePipeline:
    """A running pipeline. `folder` keeps checkpoints: the same folder and broker continue the same run.

    It starts a Spark session of its own and ends it, unless it is given one. `lane_options` are for experiments:
    they win over what the config says.
    """

    def __init__(
        self,
        url: str,
        config: PipelineConfig,
        folder: Path,
        on_alert: AlertHandler = lambda _alert: None,
        spark: SparkSession | None = None,
        lane_options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        check_broker_reach(url, config.master)
        self._url = url
        self._config = config
        self._folder = folder
        self._sinks = LogSinks(url)
        self._lanes = Lanes(self._sinks, url, config.results, config.lanes.queue_bytes)
        settings, lanes = CombinerSettings.of(config), range(config.lanes.count)
        self._combiner = Combiner(url, self._sinks, settings, folder / "held", lanes)
        self._rules = TierTwo(url, config, self._sinks, on_alert)
        self._tier1 = TierOne(url, config, self._sinks, self._lanes, _TIER1, monitor_name(config.results))
        self._written = Sinks(url, config, folder, self._sinks)
        self._queries: Queries | None = None
        self._stopping = threading.Event()
        self._spark, self._own_spark = spark, spark is None
        self._lane_options = dict(lane_options)

    def start(self) -> None:
        """Start Spark and the queries, one after the other."""
        config = self._config
        self._sinks.open()  # creates an embedded broker
        check_partitions(self._url, config, range(config.lanes.count))
        self._sinks.declare(config.input)
        self._tier1.open()
        self._sinks.add(lanes_name(config.results), None)
        for lane in range(config.lanes.count):
            self._lanes.open(lane)
        self._rules.open()
        self._combiner.start()
        self._written.start()
        if self._spark is None:
            self._spark = spark_session("flyball", config.master, workdir=self._folder)
        self._queries = queries = Queries(self._spark, self._url, config, self._folder)
        self._tier1.start(queries, **self._lane_options)
        self._rules.start(queries)

    @property
    def totals(self) -> Totals:
        return self._combiner.totals

    @property
    def ended(self) -> bool:
        """Everything up to the end of the input has been put in order."""
        return self._combiner.ended

    def set_lanes(self, count: int) -> None:
        """Run so many lanes from one of the next batches on; results of lanes that leave are not lost."""
        check_lane_count(count)
        check_partitions(self._url, self._config, range(count))
        for lane in range(count):
            self._lanes.open(lane)
        self._sinks.append_unsequenced(lanes_name(self._config.results), LanesRequest(lanes=count).to_json())

    def set_balance(self, balance: bool) -> None:
        raise InvalidValue(
            f"balance cannot be set to {balance} while runner = 'inline' runs: set lanes.balance in the config, "
            "or choose runner = 'process'"
        )

    def check(self) -> None:
        """Raise if a part has failed."""
        self._combiner.check()
        self._written.check()
        if self._queries is not None:
            self._queries.check()

    def progress(self, query: str) -> list[Any]:
        """Spark's reports on the last batches of a query: "tier1", or "rule-" and the rule's name."""
        return self._running.progress(query)

    def restarts(self) -> dict[str, int]:
        """How often each query had to be started again, by its name."""
        return {} if self._queries is None else self._queries.restarts()

    def pids(self) -> dict[str, int]:
        """There are no processes besides this one."""
        return {}

    def _check_waiting(self) -> None:
        """While somebody waits, who would wait for ever when the pipeline is stopped."""
        if self._stopping.is_set():
            raise PipelineStopped("the pipeline was stopped before everything had passed through")
        self.check()

    def drain(self) -> None:
        """Wait until everything that is in the input log now has gone all the way through."""
        with open_log_reader(self._url, self._config.input) as reader:
            goal = [reader.bounds(partition) for partition in range(reader.partitions())]
        # Flow control may keep input waiting, which looks to Spark as if there were none.
        wait_until(lambda: have_reached(self._planned(), goal), self._check_waiting)
        self._running.finish(_TIER1)
        self._combiner.drain()
        self._running.finish()
        if self._combiner.ended:
            self._rules.end_feeds()
        self._written.drain()

    def stop(self) -> None:
        self._stopping.set()
        if self._queries is not None:
            self._queries.stop()
        self._combiner.stop()
        self._written.stop()
        if self._spark is not None and self._own_spark:
            self._spark.stop()
        self._sinks.close()

    @property
    def _running(self) -> Queries:
        assert self._queries is not None, "start() comes first"
        return self._queries

    def _planned(self) -> list[int]:
        """How far tier 1's batches go, the one under way included; empty before the first."""
        offset = last_offset(self._running.checkpoint(_TIER1))
        return [] if offset is None else list(offset["next"])
