"""Where the combiner is in each lane's result queue: what was read ahead, taken, and is still needed."""

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
    """Of one result queue. `next`: offset to take next; `place`: (batch, piece) taken last; `taken_bytes`: so far.
    `held`: (offset, latest event time) of entries with rows that have not gone yet. `ready`: read, not taken."""

    next: int = 0
    place: tuple[int, int] = (-1, -1)
    taken_bytes: int = 0
    totals: Totals = field(default_factory=Totals)
    held: list[tuple[int, float]] = field(default_factory=list)
    ready: deque[tuple[int, bytes]] = field(default_factory=deque)
    fetched: int = 0
    ready_bytes: int = 0

    @property
    def keep(self) -> int:
        """From here on the queue's log is still needed."""
        return min((offset for offset, _ in self.held), default=self.next)

    def let_go(self, until_s: float) -> None:
        """Every row up to that event time has gone."""
        self.held = [(offset, latest_s) for offset, latest_s in self.held if latest_s > until_s]


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

    @property
    def cursors(self) -> list[Cursor]:
        return list(self._cursors.values())

    @property
    def taken_bytes(self) -> dict[int, int]:
        return {lane: cursor.taken_bytes for lane, cursor in self._cursors.items()}

    @property
    def waiting(self) -> list[int]:
        """Lanes of which an entry can be taken."""
        return [lane for lane, cursor in self._cursors.items() if cursor.ready]

    def end(self, lane: int) -> int:
        """Where the queue ends now. Others than the combiner's thread may ask: readers belong to one thread."""
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
        """The next entry of a lane and its offset. None: it had been taken before, for a broker that does not drop
        repeats took it twice."""
        cursor = self._cursors[lane]
        offset, body = cursor.ready.popleft()
        cursor.ready_bytes -= len(body)
        cursor.next = offset + 1
        found = entry.decode(body)
        cursor.taken_bytes = found.header["before"] + len(body)
        place = (found.header["batch"], found.header["piece"])
        if place <= cursor.place:
            return None
        cursor.place = place
        return offset, found

    def state(self) -> list[Any]:
        return [
            (lane, cursor.next, cursor.keep, cursor.place, cursor.taken_bytes, asdict(cursor.totals))
            for lane, cursor in self._cursors.items()
        ]

    def restore(self, state: list[Any]) -> Iterator[tuple[Cursor, int, pa.Table]]:
        """Go on from there: entries that had been taken come again, for their rows that had not gone."""
        for lane, following, keep, place, taken_bytes, totals in state:
            cursor = self.cursor(lane)
            cursor.next = cursor.fetched = following
            cursor.place = (place[0], place[1])
            cursor.taken_bytes, cursor.totals = taken_bytes, Totals(**totals)
            if keep < following:
                self._refuse_loss(lane, _bounds(self._readers[lane])[0], keep)
                for offset, body in self._bodies(lane, keep, following):
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
