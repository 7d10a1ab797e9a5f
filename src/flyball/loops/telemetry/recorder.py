"""Brings records to their sinks without ever making a loop wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from flyball.control.record import LoopRecord
from flyball.loops.clock import Clock
from flyball.loops.telemetry.sink import Sink

log = logging.getLogger("flyball.loops")


class Recorder:
    """Writes to fast sinks at once and to slow ones beside the loops, one write at a time for each.

    Between a loop and a slow sink waits a buffer of `capacity` records; when the sink falls behind, the oldest
    are dropped and counted. A sink that fails is reported once and tried again with the next records: telemetry
    never stops a loop.
    """

    def __init__(self, sinks: Sequence[Sink], clock: Clock, capacity: int = 100_000) -> None:
        self._clock = clock
        self._fast = [sink for sink in sinks if not sink.waits_for_disk]
        self._waiting = {id(sink): deque[LoopRecord](maxlen=capacity) for sink in sinks if sink.waits_for_disk}
        self._slow = [sink for sink in sinks if sink.waits_for_disk]
        self._writers: dict[int, asyncio.Task[None]] = {}
        self._reported: set[int] = set()
        self.dropped = 0
        self.failed = 0

    def put(self, records: Sequence[LoopRecord]) -> None:
        """Take records; returns at once."""
        for sink in self._fast:
            self._write(sink, records)
        for sink in self._slow:
            waiting = self._waiting[id(sink)]
            assert waiting.maxlen is not None
            self.dropped += max(0, len(waiting) + len(records) - waiting.maxlen)
            waiting.extend(records)
            writer = self._writers.get(id(sink))
            if writer is None or writer.done():
                self._writers[id(sink)] = asyncio.create_task(self._drain(sink))

    async def finish(self) -> None:
        """Write what waits, then let every sink put down what it holds back."""
        await asyncio.gather(*self._writers.values())
        for sink in self._slow:
            await self._drain(sink)
        for sink in (*self._fast, *self._slow):
            try:
                await self._clock.call_blocking(sink.flush)
            except Exception as error:  # noqa: BLE001 – a broken sink must not stop loops, whatever it raises
                self._report(sink, error)

    async def _drain(self, sink: Sink) -> None:
        waiting = self._waiting[id(sink)]
        while waiting:
            batch = list(waiting)
            waiting.clear()
            await self._clock.call_blocking(self._write, sink, batch)

    def _write(self, sink: Sink, records: Sequence[LoopRecord]) -> None:
        try:
            sink.write(records)
        except Exception as error:  # noqa: BLE001 – a broken sink must not stop loops, whatever it raises
            self.failed += len(records)
            self._report(sink, error)

    def _report(self, sink: Sink, error: Exception) -> None:
        if id(sink) not in self._reported:
            self._reported.add(id(sink))
            log.warning("telemetry to %s fails: %s: %s", type(sink).__name__, type(error).__name__, error)
