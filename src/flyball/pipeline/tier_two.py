"""Tier 2, carried out: a query for each rule on the ordered results; alerts are appended exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline import rules
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.queries import Queries
from flyball.pipeline.queues import last_bodies
from flyball.pipeline.rules.base import RuleBase
from flyball.pipeline.rules.gate import GateState
from flyball.pipeline.sink import LogSinks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AlertHandler = Callable[[dict[str, Any]], None]

# The combiner has put results in order and held them back for that: there is nothing left to wait for.
_WATERMARK_S = 0.0


class TierTwo:
    """Makes each rule's stream of findings, and takes their batches."""

    def __init__(self, url: str, config: PipelineConfig, sinks: LogSinks, on_alert: AlertHandler) -> None:
        self._url, self._config, self._sinks, self._on_alert = url, config, sinks, on_alert

    def open(self) -> None:
        """Prepare the logs that alerts go to."""
        if self._config.rules:
            self._sinks.declare(self._config.alerts)
        for rule in self._config.rules:
            self._sinks.add(rule.to or self._config.alerts, producer=_producer(rule))
            if rule.gated:
                self._sinks.add(_gate_log(rule), producer=_producer(rule))

    def start(self, queries: Queries) -> None:
        """Start a query for each rule."""
        for rule in self._config.rules:
            stream = self.findings(queries.results(), rule)
            queries.start(f"rule-{rule.name}", stream, self.handler(rule), close_windows=True)

    def findings(self, results: DataFrame, rule: RuleBase) -> DataFrame:
        config = self._config
        return rules.alerts(
            results, rule, config.result_columns, config.event_time, _WATERMARK_S, config.longest_window_s
        )

    def handler(self, rule: RuleBase) -> Callable[[DataFrame, int], None]:
        log = rule.to or self._config.alerts
        states = [GateState()]
        if rule.gated:
            with open_log_reader(self._url, _gate_log(rule)) as reader:
                states += [GateState.from_json(body) for body in last_bodies(reader, 2)]

        def handle(rows: DataFrame, batch: int) -> None:
            # Spark may repeat the last batch, which then starts from the state before it.
            before = next(state for state in reversed(states) if state.batch < batch)
            messages, after = rules.messages(rule, rows.toArrow().to_pylist(), batch, before)
            bodies = [json.dumps(message).encode() for message in messages]
            self._sinks.append(log, _producer(rule), batch, bodies)
            if rule.gated:
                self._sinks.append(_gate_log(rule), _producer(rule), batch, [after.to_json()])
            states[:] = [before, after]
            for message in messages:
                self._on_alert(message)

        return handle


def _producer(rule: RuleBase) -> str:
    return f"rule-{rule.name}"


def _gate_log(rule: RuleBase) -> str:
    return f"gate-{rule.name}"
