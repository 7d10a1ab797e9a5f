"""Counts what a pipeline made of its input by reading the logs it wrote, not by asking it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import require
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.ledger import Totals
from flyball.pipeline.marks import is_mark


@dataclass(frozen=True, slots=True)
class Audit:
    """`lost`: events read that are neither a result nor filtered nor dead-lettered. `waiting`: not yet read."""

    events_in: int
    results: int
    filtered: int
    dead_letter: int
    waiting: int
    lost: int
    duplicated: int
    alerts: int


def audit(url: str, config: PipelineConfig, totals: Totals) -> Audit:
    """Follow every entry of the results and dead-letter logs back to the event it came from."""
    results, repeated_results = _origins(url, config.results)
    dead, repeated_dead = _origins(url, config.dead_letter)
    events_in = _count(url, config.input)
    waiting = max(0, events_in - totals.events_in)
    return Audit(
        events_in=events_in,
        results=results,
        filtered=totals.filtered,
        dead_letter=dead,
        waiting=waiting,
        lost=events_in - waiting - results - totals.filtered - dead,
        duplicated=repeated_results + repeated_dead,
        alerts=_count(url, config.alerts) if config.rules else 0,
    )


def _count(url: str, log: str) -> int:
    with open_log_reader(url, log) as reader:
        return sum(
            sum(not is_mark(body) for body in chunk.bodies)
            for partition in range(reader.partitions())
            for chunk in reader.read_bodies(partition, *reader.bounds(partition))
        )


def _origins(url: str, log: str) -> tuple[int, int]:
    """(different events that the entries come from, entries beyond the first of their event)."""
    orjson = require("orjson", "spark")
    offsets: dict[int, list[int]] = defaultdict(list)
    with open_log_reader(url, log) as reader:
        for chunk in reader.read_bodies(0, *reader.bounds(0)):
            for body in chunk.bodies:
                if not is_mark(body):
                    entry = orjson.loads(body)
                    offsets[entry["_partition"]].append(entry["_offset"])
    entries = sum(len(places) for places in offsets.values())
    different = sum(np.unique(np.asarray(places)).size for places in offsets.values())
    return different, entries - different
