"""A random sample of events, taken where they leave the source, before anything is filtered.

Chance is a hash of the event's place in its log, so a repeated batch gives the same sample. Of each share of a
batch the events with the smallest hashes are kept: a fair draw of a fixed size, whatever the size of the share is,
made in one pass over the chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flyball.pipeline.sql.columns import EVENT

if TYPE_CHECKING:
    import pyarrow as pa

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
_Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]

_FEWEST, _MOST = 16, 1024


def rows_of_each(lanes: int) -> int:
    """How many events each lane draws, so that a batch's sample stays of the same size.

    >>> rows_of_each(2), rows_of_each(64)
    (512, 16)
    """
    return max(_FEWEST, _MOST // lanes)


class EventSample:
    """Of one share: see its chunks one after the other, then ask for `rows`."""

    def __init__(self, columns: Sequence[str], most: int) -> None:
        self._columns, self._most = list(columns), most
        self._hashes: _Hashes = np.empty(0, np.uint64)
        self._sample: list[pa.Table] = []
        self.events = 0

    def see(self, chunk: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        events = pa.Table.from_batches([chunk]).select([*self._columns, "_partition", "_offset"])
        is_event = pc.equal(chunk.column("_kind"), EVENT)
        if not pc.all(is_event).as_py():  # filtering copies
            events = events.filter(is_event)
        self.events += events.num_rows
        hashes = origin_hashes(events["_partition"].to_numpy(), events["_offset"].to_numpy())
        if self._hashes.size >= self._most:
            chosen = np.flatnonzero(hashes < self._hashes.max())
        else:
            chosen = np.arange(hashes.size)
        if not chosen.size:
            return
        kept = pa.concat_tables([*self._sample, events.select(self._columns).take(pa.array(chosen))])
        every = np.concatenate([self._hashes, hashes[chosen]])
        order = np.argsort(every, kind="stable")[: self._most]
        self._hashes, self._sample = every[order], [kept.take(pa.array(order))]

    def rows(self) -> dict[str, list[Any]]:
        return self._sample[0].to_pydict() if self._sample else {name: [] for name in self._columns}


def origin_hashes(partitions: Any, offsets: Any) -> _Hashes:
    """64 well-mixed bits for each place in a log (the finaliser of SplitMix64).

    >>> [int(bits) >> 60 for bits in origin_hashes([0, 0, 1], [0, 1, 0])]
    [8, 2, 6]
    """
    with np.errstate(over="ignore"):  # wrapping round is the point
        bits = np.asarray(offsets, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        bits += (np.asarray(partitions, np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: _Hashes = bits ^ (bits >> np.uint64(31))
    return mixed


def quantile(values: Floats, weights: Floats, level: float) -> float:
    """The smallest value up to which that share of the weight lies.

    >>> quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.5)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = int(np.searchsorted(reached, level * reached[-1] * (1.0 - 1e-12), side="left"))
    return float(values[order][min(at, values.size - 1)])


def rate(times_s: Floats, weights: Floats, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float | None:
    """Chosen events per second of event time. None: the sample covers no time.

    Counted between the 5th and the 95th percentile of all times, so that a clock that is wrong does not count.

    >>> times_s = np.arange(1000) / 10.0
    >>> rate(times_s, np.full(1000, 5.0), times_s >= 0)
    50.0
    """
    low_s, high_s = (quantile(times_s, weights, level) for level in (0.05, 0.95))
    if not high_s > low_s:
        return None
    inside = chosen & (times_s > low_s) & (times_s <= high_s)
    return float(weights[inside].sum()) / (high_s - low_s)
