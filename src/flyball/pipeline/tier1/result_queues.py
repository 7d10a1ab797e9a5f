"""Writes tier 1's rows, as entries, to the result queues of the lanes that made them.

An entry's header::

    batch, piece   number the entry for its queue; the last piece of a batch has the rest
    mark           every tick up to this one is complete (where lanes share an application, a tick is a batch)
    members, last  the lanes of that tick; whether this lane leaves after it
    latest_s, ends how far event time came in the lane's share; whether the input ended there
    marks          the same for each of the pipelines that write the input
    events, seconds  size of the share and the time it needed: input of balancing
    cycle          events and seconds of the lane's previous batch, from its planning to its end
    taken          events of the lane's ticks that are read by the end of the batch, in total
    totals         what became of this lane's events, including this batch
    before         bytes appended to this queue before the entry: input of the free-space sensor
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from flyball.brokers.log_reader import open_log_reader
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import last_bodies, queue_name
from flyball.pipeline.logs.totals import Ledger, Totals
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.split.shares import ShareEnd

if TYPE_CHECKING:
    import pyarrow as pa

_RETAINED = 8  # times its size a queue's log keeps: taken entries are needed until their rows are in order


class ResultQueue:
    """Writes one lane's results; a repeated batch changes nothing."""

    def __init__(self, sinks: LogSinks, url: str, results: str, lane: int, size_bytes: int) -> None:
        self._sinks = sinks
        self._log = queue_name(results, lane)
        self._producer = f"lane-{lane}"
        sinks.add(self._log, self._producer, max_bytes=_RETAINED * size_bytes)
        self._ledger, self._bytes = self._earlier(url)

    def write(self, batch: int, rows: pa.Table, end: ShareEnd, malformed: int) -> Totals:
        total = self._ledger.enter(batch, rows=end.bodies, results=rows.num_rows, dead_letter=malformed)
        before = self._bytes_before(batch)
        bodies: list[bytes] = []
        pieces = list(entry.slices(rows))
        for number, piece in enumerate(pieces):
            header: dict[str, Any] = {"batch": batch, "piece": number, "before": before + sum(map(len, bodies))}
            header |= {"totals": asdict(total), "events": end.bodies, "seconds": end.seconds}
            header |= {"cycle": end.cycle, "taken": end.events_read_total}
            if number == len(pieces) - 1:
                header |= {
                    "mark": batch if end.tick is None else end.tick,
                    "members": end.members,
                    "last": end.last,
                    "latest_s": end.latest_s,
                    "ends": end.ends,
                    "marks": end.marks,
                }
            bodies.append(entry.encode(header, piece))
        self._sinks.append(self._log, self._producer, batch, bodies)
        earlier = [(at, size) for at, size in self._bytes if at < batch]
        self._bytes = [*earlier[-1:], (batch, before + sum(map(len, bodies)))]
        return total

    def _bytes_before(self, batch: int) -> int:
        """Bytes appended in earlier batches; this one may be a repeat of the last."""
        return next((size for at, size in reversed(self._bytes) if at < batch), 0)

    def _earlier(self, url: str) -> tuple[Ledger, list[tuple[int, int]]]:
        """Where an earlier run of this lane stopped: its last batches, of which the very last may be repeated."""
        totals: dict[int, Totals] = {}
        sizes: dict[int, int] = {}
        with open_log_reader(url, self._log) as reader:
            first, end = reader.bounds(0)
            for most in (16, 256, end - first):  # a batch may have many pieces
                for body in last_bodies(reader, most):
                    header = entry.header_of(body)
                    totals[header["batch"]] = Totals(**header["totals"])
                    sizes[header["batch"]] = header["before"] + len(body)
                if len(totals) > 1:
                    break
        return Ledger(list(totals.values())), list(sizes.items())[-2:]


class Lanes:
    """The result queues of all lanes that run here."""

    def __init__(self, sinks: LogSinks, url: str, results: str, size_bytes: int) -> None:
        self._sinks, self._url, self._results, self._size_bytes = sinks, url, results, size_bytes
        self._queues: dict[int, ResultQueue] = {}

    def open(self, lane: int) -> ResultQueue:
        if lane not in self._queues:
            self._queues[lane] = ResultQueue(self._sinks, self._url, self._results, lane, self._size_bytes)
        return self._queues[lane]

    def write(self, batch: int, results: pa.Table, malformed: pa.Table, ends: list[ShareEnd]) -> None:
        """Give every lane what came out of its share."""
        parts = {lane: [end for end in ends if end.lane == lane] for lane in sorted({end.lane for end in ends})}
        for end in map(ShareEnd.joined, parts.values()):
            own = results.filter(_within(results, end)) if len(parts) > 1 else results
            bad = int(np.count_nonzero(_within(malformed, end)))
            self.open(end.lane).write(batch, own, end, bad)


def _within(rows: pa.Table, end: ShareEnd) -> Any:
    """Which rows came from a share, by their positions in the input."""
    import pyarrow as pa

    partitions = rows["_partition"].to_numpy()
    offsets = rows["_offset"].to_numpy()
    chosen = np.zeros(rows.num_rows, dtype=bool)
    for partition, first, stop in end.ranges:
        chosen |= (partitions == partition) & (offsets >= first) & (offsets < stop)
    return pa.array(chosen)
