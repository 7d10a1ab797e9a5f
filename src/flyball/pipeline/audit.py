"""Counts what a pipeline made of its input by reading the logs it wrote, not by asking it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import require
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.marks import is_mark
from flyball.pipeline.logs.totals import Totals


@dataclass(frozen=True, slots=True)
class Audit:
    """`late`: results that arrived too late to be ordered; `disordered`: results in the wrong order.
    `lost`: events read that are neither a result nor filtered nor dead-lettered. `waiting`: not yet read, or, of a
    run that was broken off, a result that still waits for its turn."""

    events_in: int
    results: int
    late: int
    filtered: int
    dead_letter: int
    waiting: int
    lost: int
    duplicated: int
    disordered: int
    alerts: int


class _Origins:
    """Positions in the input from which entries came."""

    def __init__(self) -> None:
        self._offsets: dict[int, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = defaultdict(list)

    def add(
        self,
        partitions: np.ndarray[tuple[int], np.dtype[np.int64]],
        offsets: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        for partition in np.unique(partitions):
            self._offsets[int(partition)].append(offsets[partitions == partition])

    def count(self) -> tuple[int, int]:
        """(different events, entries beyond the first of their event)."""
        places = [np.concatenate(parts) for parts in self._offsets.values()]
        entries = sum(part.size for part in places)
        different = sum(np.unique(part).size for part in places)
        return different, entries - different


def audit(url: str, config: PipelineConfig, totals: Totals, *, complete: bool = True) -> Audit:
    """Follow every entry of the results and dead-letter logs back to the event it came from.

    Not `complete`: what is still in the result queues, or held back for its turn, is not lost.
    """
    results, repeated_results, late, disordered = _results(url, config)
    dead, repeated_dead = _dead_letters(url, config.dead_letter)
    events_in = _count(url, config.input)
    waiting = max(0, events_in - totals.events_in)
    if not complete:
        waiting += max(0, totals.results - results)
    return Audit(
        events_in=events_in,
        results=results,
        late=late,
        filtered=totals.filtered,
        dead_letter=dead,
        waiting=waiting,
        lost=events_in - waiting - results - totals.filtered - dead,
        duplicated=repeated_results + repeated_dead,
        disordered=disordered,
        alerts=_count(url, config.alerts) if config.rules else 0,
    )


def _bodies(url: str, log: str) -> Iterator[bytes]:
    with open_log_reader(url, log) as reader:
        for partition in range(reader.partitions()):
            for chunk in reader.read_bodies(partition, *reader.bounds(partition)):
                yield from chunk.bodies


def _count(url: str, log: str) -> int:
    return sum(not is_mark(body) for body in _bodies(url, log))


def _results(url: str, config: PipelineConfig) -> tuple[int, int, int, int]:
    """(different events, repeats, late ones, rows that stand before an earlier one)."""
    origins, late, disordered, last_s = _Origins(), 0, 0, -np.inf
    for body in _bodies(url, config.results):
        found = entry.decode(body)
        late += entry.late(found).num_rows
        rows = found.rows
        origins.add(rows["_partition"].to_numpy(), rows["_offset"].to_numpy())
        times = entry.in_order(found)[config.event_time].to_numpy()
        if times.size:
            disordered += int(np.count_nonzero(np.diff(times) < 0)) + int(times[0] < last_s)
            last_s = times[-1]
    return *origins.count(), late, disordered


def _dead_letters(url: str, log: str) -> tuple[int, int]:
    orjson = require("orjson", "spark")
    origins = _Origins()
    entries = [orjson.loads(body) for body in _bodies(url, log)]
    origins.add(
        np.asarray([one["_partition"] for one in entries], np.int64),
        np.asarray([one["_offset"] for one in entries], np.int64),
    )
    return origins.count()
