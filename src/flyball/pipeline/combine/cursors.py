"""The combiner's positions in the lanes' result queues: what is fetched ahead, read, and still needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.errors import FlyballError
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import queue_name
from flyball.pipeline.logs.totals import Totals

if TYPE_CHECKING:
    import pyarrow as pa

_READ_AHEAD_BYTES = 8 << 20


class ResultsLost(FlyballError, LookupError):
    """A result queue no longer has what the combiner still needs."""


@dataclass(slots=True)
class Cursor:
    """The combiner's position in one result queue.

    `next`: offset of the next entry; `last_piece`: (batch, piece) of the last one; `read_bytes`: read so far;
    `unreleased`: (offset, latest event time) of entries that still have rows in the reorder buffer; `ready`:
    entries that were fetched ahead.
    """

    next: int = 0
    last_piece: tuple[int, int] = (-1, -1)
    read_bytes: int = 0
    totals: Totals = field(default_factory=Totals)
    unreleased: list[tuple[int, float]] = field(default_factory=list)
    ready: deque[tuple[int, bytes]] = field(default_factory=deque)
    fetched: int = 0
    ready_bytes: int = 0

    @property
    def first_needed(self) -> int:
        """Offset from which the queue's log is still needed."""
        return min((offset for offset, _ in self.unreleased), default=self.next)

    def drop_released(self, until_s: float) -> None:
        """Forget entries whose rows were all released up to that event time."""
        self.unreleased = [(offset, latest_s) for offset, latest_s in self.unreleased if latest_s > until_s]


class ResultQueues:
    """The result queues of all lanes that were ever named."""

    def __init__(self, url: str, results: str) -> None:
        self._url, self._results = url, results
        self._cursors: dict[int, Cursor] = {}
        self._readers: dict[int, LogReader] = {}

    def cursor(self, lane: int) -> Cursor:
        if lane not in self._cursors:
            self._readers[lane] = open_log_reader(self._url, queue_name(self._results, lane))
            self._cursors[lane] = Cursor()
        return self._cursors[lane]

    def next_offset(self, lane: int) -> int:
        """Offset of the lane's next entry. Any thread may ask: unlike `cursor`, this opens nothing."""
        cursor = self._cursors.get(lane)
        return 0 if cursor is None else cursor.next

    @property
    def cursors(self) -> list[Cursor]:
        return list(self._cursors.values())

    @property
    def read_bytes(self) -> dict[int, int]:
        return {lane: cursor.read_bytes for lane, cursor in self._cursors.items()}

    @property
    def waiting(self) -> list[int]:
        """Lanes that have an entry ready."""
        return [lane for lane, cursor in self._cursors.items() if cursor.ready]

    def end(self, lane: int) -> int:
        """End offset of the queue, read with a reader of its own: readers belong to one thread."""
        with open_log_reader(self._url, queue_name(self._results, lane)) as reader:
            return _bounds(reader)[1]

    def fetch(self) -> None:
        """Read ahead, within bounds."""
        for lane, cursor in self._cursors.items():
            if cursor.ready_bytes >= _READ_AHEAD_BYTES:
                continue
            first, end = _bounds(self._readers[lane])
            if end <= cursor.fetched:
                continue
            self._refuse_loss(lane, first, cursor.fetched)
            for offset, body in self._bodies(lane, cursor.fetched, end):
                cursor.ready.append((offset, body))
                cursor.fetched = offset + 1
                cursor.ready_bytes += len(body)
                if cursor.ready_bytes >= _READ_AHEAD_BYTES:
                    break

    def take(self, lane: int) -> tuple[int, entry.Entry] | None:
        """The next entry of a lane and its offset, or None for a repeat (some brokers do not drop them)."""
        cursor = self._cursors[lane]
        offset, body = cursor.ready.popleft()
        cursor.ready_bytes -= len(body)
        cursor.next = offset + 1
        found = entry.decode(body)
        cursor.read_bytes = found.header["before"] + len(body)
        last_piece = (found.header["batch"], found.header["piece"])
        if last_piece <= cursor.last_piece:
            return None
        cursor.last_piece = last_piece
        return offset, found

    def state(self) -> list[Any]:
        return [
            (lane, cursor.next, cursor.first_needed, cursor.last_piece, cursor.read_bytes, asdict(cursor.totals))
            for lane, cursor in self._cursors.items()
        ]

    def restore(self, state: list[Any]) -> Iterator[tuple[Cursor, int, pa.Table]]:
        """Continue from a stored state; yields again the entries whose rows were not all released."""
        for lane, following, first_needed, last_piece, read_bytes, totals in state:
            cursor = self.cursor(lane)
            cursor.next = cursor.fetched = following
            cursor.last_piece = (last_piece[0], last_piece[1])
            cursor.read_bytes, cursor.totals = read_bytes, Totals(**totals)
            if first_needed < following:
                self._refuse_loss(lane, _bounds(self._readers[lane])[0], first_needed)
                for offset, body in self._bodies(lane, first_needed, following):
                    yield cursor, offset, entry.decode(body).rows

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    def _bodies(self, lane: int, first: int, stop: int) -> Iterator[tuple[int, bytes]]:
        for chunk in self._readers[lane].read_bodies(0, first, stop):
            offsets = chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
            yield from zip(offsets, chunk.bodies, strict=True)

    def _refuse_loss(self, lane: int, first: int, needed: int) -> None:
        if first > needed:
            name = queue_name(self._results, lane)
            raise ResultsLost(
                f"the result queue {name} begins at {first}, but results from {needed} on are still needed: "
                "make lanes.queue_bytes larger"
            )


def _bounds(queue: LogReader) -> tuple[int, int]:
    try:
        return queue.bounds(0)
    except NoSuchChannel:
        return 0, 0  # the lane has not begun yet
