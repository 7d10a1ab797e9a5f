"""Tier 2, carried out: a query for each rule on the ordered results; alerts are appended exactly once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import last_bodies
from flyball.pipeline.logs.marks import mark
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.run.checkpoint import watermark_s
from flyball.pipeline.run.queries import Queries
from flyball.pipeline.sql.columns import Columns
from flyball.pipeline.tier2 import rules
from flyball.pipeline.tier2.rules.base import RuleBase
from flyball.pipeline.tier2.rules.gate import GateState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AlertHandler = Callable[[dict[str, Any]], None]

# The combiner has put results in order and held them back for that: there is nothing left to wait for.
_WATERMARK_S = 0.0


class TierTwo:
    """Makes each rule's stream of findings, and takes their batches."""

    def __init__(self, url: str, config: PipelineConfig, sinks: LogSinks, on_alert: AlertHandler) -> None:
        self._url, self._config, self._sinks, self._on_alert = url, config, sinks, on_alert
        self._promised_s: dict[str, dict[str, float]] = {channel: {} for channel in config.feeds}

    def open(self) -> None:
        """Prepare the logs that alerts go to."""
        if self._config.rules:
            self._sinks.declare(self._config.alerts)
        for rule in self._config.rules:
            self._sinks.add(rule.to or self._config.alerts, producer=self._producer(rule))
            if rule.gated:
                self._sinks.add(gate_log(self._config, rule), producer=self._producer(rule))

        for channel in self._config.feeds:
            self._sinks.add(channel, None)

    def start(self, queries: Queries) -> None:
        """Start a query for each rule."""
        for rule in self._config.rules:
            name = f"rule-{rule.name}"
            columns = rule.reads(self._config.result_columns, self._config.event_time)
            stream = self._findings(queries.results(columns), rule, columns)
            queries.start(name, stream, self.handler(rule, queries.checkpoint(name)), close_windows=True)

    def end_feeds(self) -> None:
        """Write the end mark to the channels that downstream pipelines read."""
        for channel in self._config.feeds:
            self._sinks.append_unsequenced(channel, mark(math.inf, self._config.producer_name))

    def _findings(self, results: DataFrame, rule: RuleBase, columns: Columns) -> DataFrame:
        config = self._config
        return rules.alerts(results, rule, columns, config.event_time, _WATERMARK_S, config.longest_window_s)

    def handler(self, rule: RuleBase, checkpoint: Path) -> Callable[[DataFrame, int], None]:
        log = rule.to or self._config.alerts
        states = [GateState()]
        if rule.gated:
            with open_log_reader(self._url, gate_log(self._config, rule)) as reader:
                states += [GateState.from_json(body) for body in last_bodies(reader, 2)]

        def handle(rows: DataFrame, batch: int) -> None:
            # Spark may repeat the last batch, which then starts from the state before it.
            before = next(state for state in reversed(states) if state.batch < batch)
            messages, after = rules.messages(rule, rows.toArrow().to_pylist(), batch, before)
            bodies = [json.dumps(message, allow_nan=False).encode() for message in messages]
            self._sinks.append(log, self._producer(rule), batch, bodies)
            if rule.gated:
                self._sinks.append(gate_log(self._config, rule), self._producer(rule), batch, [after.to_json()])
            states[:] = [before, after]
            self._promise(log, rule, watermark_s(checkpoint, batch))
            for message in messages:
                self._on_alert(message)

        return handle

    def _promise(self, channel: str, rule: RuleBase, judged_s: float | None) -> None:
        """Tell pipelines that read the channel up to where all rules that write to it have judged everything.

        Repeats do no harm, so marks need no sequence numbers.
        """
        if channel not in self._promised_s or judged_s is None:
            return
        writers = [one.name for one in self._config.rules if (one.to or self._config.alerts) == channel]
        known = self._promised_s[channel]
        before = _least(known, writers)
        known[rule.name] = judged_s - rule.lag_s
        after = _least(known, writers)
        if after is not None and after > 0 and after != before:
            self._sinks.append_unsequenced(channel, mark(after, self._config.producer_name))

    def _producer(self, rule: RuleBase) -> str:
        """With the pipeline's name: several pipelines may write to one channel."""
        return f"{self._config.producer_name}.rule-{rule.name}"


def gate_log(config: PipelineConfig, rule: RuleBase) -> str:
    """The log that keeps the state of a rule that holds alerts back."""
    return f"{config.producer_name}.gate-{rule.name}"


def _least(known: dict[str, float], names: list[str]) -> float | None:
    return min(known.values()) if all(name in known for name in names) else None
