"""A reorder buffer: rows are added as they arrive and released in the order of event time; it spills to disk.

The order is total: event time, then position in the input (partition, offset), so that it does not depend on how
the events were shared among lanes. A row that arrives after a later one was released is late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[float, int, int]
"""(event time, partition, offset): a row's position in the order"""

BEFORE_ALL: Key = (-math.inf, -1, -1)


@dataclass(slots=True)
class _Run:
    """Sorted rows; those before `at` were released. `path`: the file that holds them, memory-mapped."""

    rows: pa.Table
    times: np.ndarray[tuple[int], np.dtype[np.float64]]
    path: Path | None = None
    at: int = 0

    @property
    def left(self) -> int:
        return int(self.rows.num_rows) - self.at


class ReorderBuffer:
    """`most_bytes` bounds the rows in memory; beyond it they are written, sorted, to files in `folder`."""

    def __init__(self, event_time: str, most_bytes: int, folder: Path) -> None:
        self._event_time, self._most_bytes, self._folder = event_time, most_bytes, folder
        self._runs: list[_Run] = []
        self._files = 0
        self.released = BEFORE_ALL
        """key of the last released row, or of the time that was closed after it"""

    @property
    def rows(self) -> int:
        return sum(run.left for run in self._runs)

    @property
    def memory_bytes(self) -> int:
        return sum(run.rows.nbytes for run in self._runs if run.path is None)

    @property
    def files(self) -> int:
        """Files on disk now."""
        return sum(run.path is not None for run in self._runs)

    def add(self, rows: pa.Table) -> pa.Table:
        """Add rows; returns the late ones."""
        if rows.num_rows == 0:
            return rows
        ordered = self._sorted(rows)
        late = self._after(ordered, self.released)
        if late < ordered.num_rows:
            kept = ordered.slice(late)
            self._runs.append(_Run(kept, kept[self._event_time].to_numpy()))
            if self.memory_bytes > self._most_bytes:
                self._spill()
        return ordered.slice(0, late)

    def release(self, until_s: float) -> pa.Table | None:
        """Take out every row up to that event time, in order; None: there is none."""
        import pyarrow as pa

        parts = []
        for run in self._runs:
            stop = int(np.searchsorted(run.times, until_s, side="right"))
            if stop > run.at:
                parts.append(run.rows.slice(run.at, stop - run.at))
                run.at = stop
        for run in [run for run in self._runs if run.left == 0]:
            self._forget(run)
        if not parts:
            return None
        rows = parts[0] if len(parts) == 1 else self._sorted(pa.concat_tables(parts))
        self.released = max(self.released, self._key(rows, rows.num_rows - 1))
        return rows

    def close_before(self, mark_s: float, released: Key) -> Key:
        """Make every row older than `mark_s` late from now on; returns the key of that border."""
        closed = max(released, (mark_s, -1, -1))
        self.released = max(self.released, closed)
        return closed

    def key_of_last(self, rows: pa.Table) -> Key:
        return self._key(rows, rows.num_rows - 1)

    def close(self) -> None:
        for run in list(self._runs):
            self._forget(run)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        keys = [(self._event_time, "ascending"), ("_partition", "ascending"), ("_offset", "ascending")]
        return rows.sort_by(keys).combine_chunks()

    def _key(self, rows: pa.Table, at: int) -> Key:
        time_s, partition, offset = (
            rows[name][at].as_py() for name in (self._event_time, "_partition", "_offset")
        )
        return float(time_s), int(partition), int(offset)

    def _after(self, ordered: pa.Table, key: Key) -> int:
        """Number of sorted rows at or before a key."""
        times = ordered[self._event_time].to_numpy()
        low = int(np.searchsorted(times, key[0], side="left"))
        high = int(np.searchsorted(times, key[0], side="right"))
        # Clocks that tell seconds make thousands of rows of one time.
        tied = ordered.slice(low, high - low)
        partitions, offsets = tied["_partition"].to_numpy(), tied["_offset"].to_numpy()
        before = (partitions < key[1]) | ((partitions == key[1]) & (offsets <= key[2]))
        return low + int(np.count_nonzero(before))

    def _spill(self) -> None:
        """Write what is in memory as one sorted run, and map it back."""
        import pyarrow as pa

        in_memory = [run for run in self._runs if run.path is None]
        rows = self._sorted(pa.concat_tables([run.rows.slice(run.at) for run in in_memory]))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files += 1
        path = self._folder / f"held-{self._files}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        mapped = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        run = _Run(mapped, np.asarray(mapped[self._event_time].to_numpy()), path)
        self._runs = [other for other in self._runs if other.path is not None] + [run]

    def _forget(self, run: _Run) -> None:
        self._runs.remove(run)
        if run.path is not None:
            run.path.unlink(missing_ok=True)
