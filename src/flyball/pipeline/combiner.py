"""Merges the result queues of all lanes into one log in event-time order.

A row may go when event time is settled `watermark_s` past it: every lane has delivered all ticks up to some tick,
and the latest event of those ticks is that much later (policy.next_lane and policy.took decide it). Rows that come
when a later one has gone cannot be put in order any more: they make an entry of their own, are counted,
and are copied to a log of their own.

Nothing is kept besides the logs. Each entry of the results log carries, in its header, the state that was reached
with it: positions in the result queues, the last row that went, totals. After kill -9 the last entry says where to
go on; rows that were held back then are read again from the result queues, which keep them. As rows and state are
one message, neither can be there without the other: exactly once, on every broker.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.errors import FlyballError, require
from flyball.pipeline import entry, policy
from flyball.pipeline.config import PipelineConfig
from flyball.pipeline.holding import Holding, Key
from flyball.pipeline.ledger import Totals
from flyball.pipeline.policy import LaneProgress, Merge
from flyball.pipeline.queues import cursor_body, cursor_name, last_bodies, queue_name
from flyball.pipeline.sink import LogSinks

if TYPE_CHECKING:
    import pyarrow as pa

_PRODUCER = "combiner"
_READ_AHEAD_BYTES = 8 << 20
_IDLE_S = 0.02
_CURSOR_BYTES = 1 << 20


class CombinerStopped(FlyballError, RuntimeError):
    """Nobody takes results in any more."""


class ResultsLost(FlyballError, LookupError):
    """A result queue no longer has what the combiner still needs."""


@dataclass(frozen=True, slots=True)
class CombinerSettings:
    """`end_mark_s`: how far event time runs on, past the latest event, when the input has ended."""

    results: str
    late: str
    event_time: str
    watermark_s: float
    timeout_s: float
    hold_bytes: int
    end_mark_s: float

    @classmethod
    def of(cls, config: PipelineConfig) -> CombinerSettings:
        return cls(
            results=config.results,
            late=config.late,
            event_time=config.event_time,
            watermark_s=config.watermark_s,
            timeout_s=config.lanes.timeout_s,
            hold_bytes=config.lanes.hold_bytes,
            end_mark_s=config.longest_window_s,
        )


@dataclass(slots=True)
class _Cursor:
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


class Combiner:
    """One step at a time (`step`), or as a thread (`start`, `stop`)."""

    def __init__(
        self,
        url: str,
        sinks: LogSinks,
        settings: CombinerSettings,
        folder: Path,
        lanes: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._sinks, self._settings, self._clock = url, sinks, settings, clock
        self._holding = Holding(settings.event_time, settings.hold_bytes, folder)
        self._cursors: dict[int, _Cursor] = {}
        self._readers: dict[int, LogReader] = {}
        self._merge = Merge({lane: LaneProgress() for lane in lanes})
        self._number = 0
        self._late = 0
        self._latest_s = -math.inf
        self._late_rows: list[pa.Table] = []
        self._schema: pa.Schema | None = None
        self._told: dict[int, int] = {}
        self._idle_passes = 0
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flyball-combiner", daemon=True)

    # --- as a thread

    def start(self) -> None:
        self.open()
        self._thread.start()

    def check(self) -> None:
        """Raise what stopped the thread, if something did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for reader in self._readers.values():
            reader.close()
        self._holding.close()

    def drain(self) -> None:
        """Wait until everything that is in the result queues now has been taken in."""
        goals = {lane: self._bounds(lane)[1] for lane in list(self._merge.lanes)}
        while any(self._cursors[lane].next < goal for lane, goal in goals.items()):
            self._wait_for_thread()
        before = self._idle_passes
        while self._idle_passes == before:
            self._wait_for_thread()

    def _wait_for_thread(self) -> None:
        time.sleep(_IDLE_S)
        self.check()
        if not self._thread.is_alive():
            raise CombinerStopped("the combiner was stopped before it had taken in all results")

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self.step():
                    self._idle_passes += 1
                    self._stopping.wait(_IDLE_S)
        except Exception as error:  # noqa: BLE001 (check() tells it to the thread that asks)
            self._failure = error

    # --- one step

    @property
    def totals(self) -> Totals:
        """Where the events went whose results have been taken in."""
        return Totals.of([cursor.totals for cursor in self._cursors.values()])

    @property
    def late(self) -> int:
        return self._late

    @property
    def held_rows(self) -> int:
        return self._holding.rows

    def open(self) -> None:
        """Prepare the logs and go on where an earlier combiner stopped."""
        settings = self._settings
        self._sinks.add(settings.results, _PRODUCER)
        self._sinks.add(settings.late, _PRODUCER)
        self._sinks.add(cursor_name(settings.results), None, max_bytes=_CURSOR_BYTES)
        with open_log_reader(self._url, settings.results) as reader:
            last = last_bodies(reader, 1)
        if last:
            self._restore(entry.decode(last[0]))
        for lane in self._merge.lanes:
            self._cursor(lane)

    def step(self) -> bool:
        """Take in one entry and let go what may go; False: there was nothing to do."""
        self._fetch()
        waiting = [lane for lane, cursor in self._cursors.items() if cursor.ready]
        settled = self._merge.settled
        self._merge, lane = policy.next_lane(self._merge, waiting, self._clock(), self._settings.timeout_s)
        if lane is not None:
            self._take(lane)
        elif self._merge.settled == settled:
            self._tell_cursor()
            return False
        self._let_go()
        self._tell_cursor()
        return True

    def _fetch(self) -> None:
        for lane in list(self._cursors):
            cursor = self._cursors[lane]
            if cursor.ready_bytes >= _READ_AHEAD_BYTES:
                continue
            first, end = self._bounds(lane)
            if end <= cursor.fetched:
                continue
            self._refuse_loss(lane, first, cursor.fetched)
            for chunk in self._readers[lane].read_bodies(0, cursor.fetched, end):
                offsets = chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
                cursor.ready.extend(zip(offsets, chunk.bodies, strict=True))
                cursor.fetched = offsets[-1] + 1
                cursor.ready_bytes += sum(map(len, chunk.bodies))
                if cursor.ready_bytes >= _READ_AHEAD_BYTES:
                    break

    def _take(self, lane: int) -> None:
        cursor = self._cursors[lane]
        offset, body = cursor.ready.popleft()
        cursor.ready_bytes -= len(body)
        cursor.next = offset + 1
        header, rows = entry.decode(body)
        self._schema = rows.schema
        cursor.taken_bytes = header["before"] + len(body)
        place = (header["batch"], header["piece"])
        if place <= cursor.place:
            return  # a broker that does not drop repeats took the entry twice
        cursor.place = place
        self._hold(cursor, offset, rows)
        if "mark" not in header:
            return  # more of the batch follows
        cursor.totals = Totals(**header["totals"])
        latest_s = header["latest_s"]
        if latest_s is not None:
            self._latest_s = max(self._latest_s, latest_s)
        self._merge = policy.took(
            self._merge,
            lane,
            header["mark"],
            math.inf if header["ends"] else latest_s,
            header["members"],
            header["last"],
        )
        for member in self._merge.lanes:
            self._cursor(member)

    def _hold(self, cursor: _Cursor, offset: int, rows: pa.Table) -> None:
        late = self._holding.add(rows)
        if late.num_rows:
            self._late_rows.append(late)
        if late.num_rows < rows.num_rows:
            import pyarrow.compute as pc

            cursor.held.append((offset, pc.max(rows[self._settings.event_time]).as_py()))

    def _let_go(self) -> None:
        """Write every row whose turn it is; when the input has ended, all of them and a mark that says so."""
        if self._late_rows:
            rows = self._late_rows[0] if len(self._late_rows) == 1 else _joined(self._late_rows)
            self._late += rows.num_rows
            self._late_rows = []
            self._write(rows, self._holding.gone, late=rows.num_rows)
        until_s = self._merge.latest_s - self._settings.watermark_s
        ordered = self._holding.release(until_s)
        pieces = [] if ordered is None else list(entry.slices(ordered))
        for number, piece in enumerate(pieces):
            if number == len(pieces) - 1:
                for cursor in self._cursors.values():
                    cursor.held = [(offset, latest) for offset, latest in cursor.held if latest > until_s]
            self._write(piece, self._holding.key_of_last(piece))
        if self._merge.latest_s == math.inf:
            # Should input follow after all, it goes on from the last event.
            self._merge = replace(self._merge, latest_s=self._latest_s)
            if self._schema is not None and math.isfinite(self._latest_s):
                mark_s = self._latest_s + self._settings.end_mark_s
                self._write(self._schema.empty_table(), self._holding.gone, mark_s=mark_s)

    def _write(self, rows: pa.Table, gone: Key, *, late: int = 0, mark_s: float | None = None) -> None:
        header = {"number": self._number, "late": late, "mark_s": mark_s, "state": self._state(gone)}
        body = entry.encode(header, rows)
        self._sinks.append(self._settings.results, _PRODUCER, self._number, [body])
        self._copy_late(entry.Entry(header, rows))
        self._number += 1

    def _copy_late(self, written: entry.Entry) -> None:
        rows = entry.late(written)
        if rows.num_rows:
            orjson = require("orjson", "spark")
            bodies = [orjson.dumps(row) for row in rows.to_pylist()]
            self._sinks.append(self._settings.late, _PRODUCER, written.header["number"], bodies)

    def _tell_cursor(self) -> None:
        """Say how much of each queue has been taken, and what may go of it has gone: admission goes by it."""
        taken = {lane: cursor.taken_bytes for lane, cursor in self._cursors.items()}
        if taken != self._told:
            self._sinks.tell(cursor_name(self._settings.results), cursor_body(taken))
            self._told = taken

    # --- what survives

    def _state(self, gone: Key) -> dict[str, Any]:
        merge = asdict(self._merge)
        merge["lanes"] = [
            (lane, progress["mark"], progress["given_up"]) for lane, progress in merge["lanes"].items()
        ]
        return {
            "gone": gone,
            "late": self._late,
            "latest_s": self._latest_s,
            "merge": merge,
            "queues": [
                (lane, cursor.next, cursor.keep, cursor.place, cursor.taken_bytes, asdict(cursor.totals))
                for lane, cursor in self._cursors.items()
            ],
        }

    def _restore(self, last: entry.Entry) -> None:
        state = last.header["state"]
        self._number = last.header["number"] + 1
        self._late = state["late"]
        self._latest_s = state["latest_s"]
        self._schema = last.rows.schema
        self._holding.gone = (state["gone"][0], state["gone"][1], state["gone"][2])
        merge = state["merge"]
        self._merge = Merge(
            {lane: LaneProgress(at, None, given_up) for lane, at, given_up in merge["lanes"]},
            merge["settled"],
            merge["latest_s"],
            tuple((at, latest_s) for at, latest_s in merge["ahead"]),
        )
        for lane, following, keep, place, taken_bytes, totals in state["queues"]:
            cursor = self._cursor(lane)
            cursor.next = cursor.fetched = following
            cursor.place = (place[0], place[1])
            cursor.taken_bytes, cursor.totals = taken_bytes, Totals(**totals)
            self._hold_again(lane, keep, following)
        self._copy_late(last)
        self._let_go()

    def _hold_again(self, lane: int, first: int, stop: int) -> None:
        """Read entries again that had been taken, for their rows that had not gone."""
        if first == stop:
            return
        self._refuse_loss(lane, self._bounds(lane)[0], first)
        for chunk in self._readers[lane].read_bodies(0, first, stop):
            offsets = chunk.offsets or range(chunk.first_offset, chunk.first_offset + len(chunk.bodies))
            for offset, body in zip(offsets, chunk.bodies, strict=True):
                self._hold(self._cursors[lane], offset, entry.decode(body).rows)
        self._late_rows = []  # they have gone already, in order or as late

    # --- queues

    def _cursor(self, lane: int) -> _Cursor:
        if lane not in self._cursors:
            self._cursors[lane] = _Cursor()
            self._readers[lane] = open_log_reader(self._url, queue_name(self._settings.results, lane))
        return self._cursors[lane]

    def _bounds(self, lane: int) -> tuple[int, int]:
        try:
            return self._readers[lane].bounds(0)
        except NoSuchChannel:
            return 0, 0  # the lane has not begun yet

    def _refuse_loss(self, lane: int, first: int, needed: int) -> None:
        if first > needed:
            name = queue_name(self._settings.results, lane)
            raise ResultsLost(
                f"the result queue {name} begins at {first}, but results from {needed} on are still needed: "
                "make lanes.queue_bytes larger"
            )


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables)
