"""Calls the alert handler for new alerts where the rules run in another process."""

from __future__ import annotations

import json
from contextlib import suppress

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.marks import is_mark
from flyball.pipeline.logs.writer import is_outage
from flyball.pipeline.run.polling import POLL_S
from flyball.pipeline.run.step_thread import StepThread
from flyball.pipeline.tier2.stage import AlertHandler


class AlertTail:
    """Starts with the first alert after `start`."""

    def __init__(self, url: str, config: PipelineConfig, on_alert: AlertHandler) -> None:
        self._on_alert = on_alert
        self._rules = {rule.name for rule in config.rules}
        self._readers = {
            log: open_log_reader(url, log) for log in sorted({rule.to or config.alerts for rule in config.rules})
        }
        self._positions: dict[tuple[str, int], int] = {}
        self._thread = StepThread("reader of alerts", self._step, POLL_S, is_outage)

    def start(self) -> None:
        for log, reader in self._readers.items():
            with suppress(NoSuchChannel):
                for partition in range(reader.partitions()):
                    self._positions[log, partition] = reader.bounds(partition)[1]
        self._thread.start()

    def check(self) -> None:
        self._thread.check()

    def drain(self) -> None:
        """Wait until everything that is there now has been handed out."""
        passes = self._thread.idle_passes
        self._thread.wait_until(lambda: self._thread.idle_passes > passes + 1)

    def stop(self) -> None:
        self._thread.stop()
        for reader in self._readers.values():
            reader.close()

    def _step(self) -> bool:
        found = False
        for log, reader in self._readers.items():
            with suppress(NoSuchChannel):
                for partition in range(reader.partitions()):
                    found |= self._hand_out(log, partition, reader)
        return found

    def _hand_out(self, log: str, partition: int, reader: LogReader) -> bool:
        at, end = self._positions.get((log, partition), 0), reader.bounds(partition)[1]
        for chunk in reader.read_bodies(partition, at, end):
            offsets = chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
            for offset, body in zip(offsets, chunk.bodies, strict=True):
                self._positions[log, partition] = offset + 1  # a chunk that follows may fail
                # Marks, and what other pipelines write to the same log, are no alerts of ours.
                if not is_mark(body) and (message := json.loads(body)).get("rule") in self._rules:
                    self._on_alert(message)
        self._positions[log, partition] = end
        return end > at
