"""Reading ranges of a log as a whole: what is gone is an error that names it, or is left out with a warning."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from flyball.brokers.log_reader import LogChunk, LogReader
from flyball.brokers.port import Unreachable
from flyball.pipeline.policy.positions import Bounds, DataLost, Gap, continue_from

log = logging.getLogger("flyball.pipeline")

CONFIRM_S = 5.0
"""How long a log must be shorter than before until it counts as another one: replicas may lag behind a little."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """What happens when records of a log are gone: an error, or (`fails` False) a warning."""

    log: str
    fails: bool = True

    def report(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            if self.fails:
                raise DataLost(
                    f"{gap.describe(self.log)}; keep its messages longer, and begin with a new checkpoint, or set "
                    "fail_on_data_loss = false to continue with what is there"
                )
            log.warning("%s; continuing at %d", gap.describe(self.log), gap.first)


def positions_in(
    known: Sequence[int],
    bounds: Callable[[], list[Bounds]],
    loss: LossPolicy,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[int], list[Bounds], list[Gap]]:
    """Where to continue, the bounds of the log, and the gaps that are tolerated."""
    until_s: float | None = None
    while True:
        found = bounds()
        positions, gaps = continue_from(known, found)
        if not any(gap.in_new_log for gap in gaps):
            break
        until_s = clock() + CONFIRM_S if until_s is None else until_s
        if clock() >= until_s:
            break
        sleep(_LOOK_S)
    loss.report(gaps)
    return positions, found, gaps


def read_complete(
    reader: LogReader,
    partition: int,
    first: int,
    stop: int,
    loss: LossPolicy,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LogChunk]:
    """The chunks of a range that was in the log when it was planned."""
    at, until_s = first, None
    while at < stop:
        for chunk in reader.read_bodies(partition, at, stop):
            begin = chunk.offsets[0] if chunk.offsets else chunk.first_offset
            if begin > at:  # a hole that the broker made, or the beginning was removed
                _report_removed(reader, partition, at, begin, loss)
            yield chunk
            at = (chunk.offsets[-1] if chunk.offsets else chunk.first_offset + len(chunk.bodies) - 1) + 1
        if at >= stop:
            return
        there, end = reader.bounds(partition)
        if there > at:
            _report_removed(reader, partition, at, stop, loss)
            at = min(there, stop)
        elif end >= stop:
            return  # only holes
        else:
            until_s = clock() + CONFIRM_S if until_s is None else until_s
            if clock() >= until_s:
                if end == 0:
                    raise Unreachable(f"the log {loss.log!r} sends nothing of offsets {at} to {stop - 1}")
                loss.report([Gap(partition, stop, there, end)])
                return
            sleep(_LOOK_S)


def _report_removed(reader: LogReader, partition: int, at: int, stop: int, loss: LossPolicy) -> None:
    there, end = reader.bounds(partition)
    if there > at:
        loss.report([Gap(partition, at, min(there, stop), max(end, at))])
