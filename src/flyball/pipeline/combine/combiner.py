"""Merges the result queues of all lanes into one log in event-time order.

A row is released once the watermark has passed it: every lane has delivered all ticks up to some tick, and the
latest event of those ticks is `watermark_s` later (policy.next_lane and policy.add_entry decide it). A row that
arrives after a later one was released is late: late rows are written as an entry of their own, counted, and copied
to the log `late`.

All state is in the logs. Each entry of the results log carries in its header the state that was reached with it:
positions in the result queues, the last released row, totals. After kill -9 the combiner continues from the last
entry; rows that were not released by then are read again from the result queues, which still have them. Rows and
state are one message, so neither exists without the other: exactly once, on every broker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.brokers.log_reader import open_log_reader
from flyball.errors import require
from flyball.pipeline import policy
from flyball.pipeline.combine.cursors import Cursor, ResultQueues
from flyball.pipeline.combine.reorder_buffer import Key, ReorderBuffer
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import cursor_body, cursor_name, last_bodies
from flyball.pipeline.logs.totals import Totals
from flyball.pipeline.logs.writer import LogSinks, is_outage
from flyball.pipeline.policy import LaneProgress, Merge, UpstreamProgress, Upstreams
from flyball.pipeline.run.step_thread import StepThread

if TYPE_CHECKING:
    import pyarrow as pa

_PRODUCER = "combiner"
_IDLE_S = 0.02
_CURSOR_BYTES = 1 << 20
_MARK_EVERY_S = 1.0  # of event time


@dataclass(frozen=True, slots=True)
class CombinerSettings:
    """`end_mark_s`: how far event time runs on, past the latest event, when the input has ended. `upstream`: the
    pipelines that write the input, whose marks then count instead of `watermark_s`."""

    results: str
    late: str
    event_time: str
    watermark_s: float
    timeout_s: float
    reorder_bytes: int
    end_mark_s: float
    upstream: tuple[str, ...] = ()
    upstream_timeout_s: float = 60.0

    @classmethod
    def of(cls, config: PipelineConfig) -> CombinerSettings:
        return cls(
            results=config.results,
            late=config.late,
            event_time=config.event_time,
            watermark_s=config.watermark_s,
            timeout_s=config.lanes.timeout_s,
            reorder_bytes=config.lanes.reorder_bytes,
            end_mark_s=config.longest_window_s,
            upstream=config.upstream,
            upstream_timeout_s=config.upstream_timeout_s,
        )


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
        self._folder, self._first_lanes = folder, tuple(lanes)
        self._thread = StepThread("combiner", self.step, _IDLE_S, is_outage, self._open_again)
        self._begin()

    def _begin(self) -> None:
        """The state of a combiner that has read nothing; `open` continues from what is in the logs."""
        settings = self._settings
        self._buffer = ReorderBuffer(settings.event_time, settings.reorder_bytes, self._folder)
        self._queues = ResultQueues(self._url, settings.results)
        self._merge = Merge({lane: LaneProgress() for lane in self._first_lanes})
        self._upstreams = policy.upstreams_of(settings.upstream)
        self._marked_s = -math.inf
        self._ended = False
        self._number = 0
        self._late = 0
        self._latest_s = -math.inf
        self._late_rows: list[pa.Table] = []
        self._schema: pa.Schema | None = None
        self._published: dict[int, int] = {}
        self._released_s = -math.inf

    # --- as a thread

    def start(self) -> None:
        self.open()
        self._thread.start()

    def check(self) -> None:
        """Raise what stopped the thread, if something did."""
        self._thread.check()

    def stop(self) -> None:
        self._thread.stop()
        self._queues.close()
        self._buffer.close()

    def drain(self) -> None:
        """Wait until everything that is in the result queues now was read."""
        goals = {lane: self._queues.end(lane) for lane in list(self._merge.lanes)}
        self._thread.wait_until(
            lambda: all(self._queues.next_offset(lane) >= goal for lane, goal in goals.items())
        )
        before = self._thread.idle_passes
        self._thread.wait_until(lambda: self._thread.idle_passes > before)

    # --- one step

    @property
    def totals(self) -> Totals:
        """What became of the events whose results were read."""
        return Totals.of([cursor.totals for cursor in self._queues.cursors])

    @property
    def late(self) -> int:
        return self._late

    @property
    def ended(self) -> bool:
        """Whether the last entry written is the end of the input."""
        return self._ended

    @property
    def buffered_rows(self) -> int:
        return self._buffer.rows

    def open(self) -> None:
        """Prepare the logs and continue where an earlier combiner stopped."""
        settings = self._settings
        self._sinks.add(settings.results, _PRODUCER)
        self._sinks.add(settings.late, _PRODUCER)
        self._sinks.add(cursor_name(settings.results), None, max_bytes=_CURSOR_BYTES)
        with open_log_reader(self._url, settings.results) as reader:
            last = last_bodies(reader, 1)
        if last:
            self._restore(entry.decode(last[0]))
        for lane in self._merge.lanes:
            self._queues.cursor(lane)

    def _open_again(self) -> None:
        """A step that failed may have done a part of its work: continue from what the logs say."""
        self._queues.close()
        self._buffer.close()
        self._begin()
        self.open()

    def step(self) -> bool:
        """Read one entry and release what may be released; False: there was nothing to do."""
        self._queues.fetch()
        now_s, timeout_s = self._clock(), self._settings.timeout_s
        self._merge, lane = policy.next_lane(self._merge, self._queues.waiting, now_s, timeout_s)
        if lane is not None:
            self._take(lane)
        elif self._until_s() <= self._released_s:
            self._publish_cursor()
            return False
        self._release()
        self._publish_cursor()
        return True

    def _take(self, lane: int) -> None:
        entry_read = self._queues.take(lane)
        if entry_read is None:
            return
        offset, (header, rows) = entry_read
        cursor = self._queues.cursor(lane)
        self._schema = rows.schema
        self._add_to_buffer(cursor, offset, rows)
        if "mark" not in header:
            return  # more of the batch follows
        cursor.totals = Totals(**header["totals"])
        latest_s = header["latest_s"]
        if latest_s is not None:
            self._latest_s = max(self._latest_s, latest_s)
        self._merge = policy.add_entry(
            self._merge,
            lane,
            header["mark"],
            math.inf if header["ends"] else latest_s,
            header["members"],
            header["last"],
        )
        self._upstreams = policy.with_marks(self._upstreams, header["mark"], header["marks"])
        for member in self._merge.lanes:
            self._queues.cursor(member)

    def _until_s(self) -> float:
        """The watermark: rows up to this event time may be released. Infinite: the input has ended."""
        settings = self._settings
        if not settings.upstream:
            return self._merge.latest_s - settings.watermark_s
        self._upstreams, until_s = policy.settled_time_s(
            self._upstreams, self._merge.settled, self._clock(), settings.upstream_timeout_s
        )
        if until_s == math.inf and not policy.all_ended(self._upstreams):
            # Of the others there is nothing left to judge, but one that was given up may still come back.
            return self._latest_s + settings.end_mark_s
        return until_s

    def _add_to_buffer(self, cursor: Cursor, offset: int, rows: pa.Table) -> None:
        late = self._buffer.add(rows)
        if late.num_rows:
            self._late_rows.append(late)
        if late.num_rows < rows.num_rows:
            import pyarrow.compute as pc

            cursor.unreleased.append((offset, pc.max(rows[self._settings.event_time]).as_py()))

    def _release(self) -> None:
        """Write every row whose turn it is; when the input has ended, all of them and a mark that says so."""
        if self._late_rows:
            rows = self._late_rows[0] if len(self._late_rows) == 1 else _joined(self._late_rows)
            self._late += rows.num_rows
            self._late_rows = []
            self._write(rows, self._buffer.released, late=rows.num_rows)
        until_s = self._until_s()
        ordered = self._buffer.release(until_s)
        pieces = [] if ordered is None else list(entry.slices(ordered))
        for number, piece in enumerate(pieces):
            if number == len(pieces) - 1:
                for cursor in self._queues.cursors:
                    cursor.drop_released(until_s)
            whole = number == len(pieces) - 1 and until_s < math.inf
            self._write(piece, self._buffer.key_of_last(piece), mark_s=until_s if whole else None)
        self._mark(until_s)
        self._released_s = until_s if until_s < math.inf else self._until_s()

    def _mark(self, until_s: float) -> None:
        """Say how far event time has come where no rows say it: windows close although nothing passed the filter.
        At the end of the input it runs on so far that all of them do."""
        if until_s == math.inf:
            # Should input follow after all, it goes on from the last event.
            self._merge = replace(self._merge, latest_s=self._latest_s)
            self._upstreams = policy.ended_at(self._upstreams, self._latest_s)
        if self._schema is None or not math.isfinite(self._latest_s):
            return
        none = self._schema.empty_table()
        if until_s == math.inf:
            self._write(none, self._buffer.released, mark_s=self._latest_s + self._settings.end_mark_s, ends=True)
        elif until_s - self._marked_s >= _MARK_EVERY_S:
            self._write(none, self._buffer.released, mark_s=until_s)

    def _write(
        self, rows: pa.Table, released: Key, *, late: int = 0, mark_s: float | None = None, ends: bool = False
    ) -> None:
        self._ended = ends
        if mark_s is not None:
            released = self._buffer.close_before(mark_s, released)
            if not ends:
                self._marked_s = mark_s
        header = {
            "number": self._number,
            "late": late,
            "mark_s": mark_s,
            "ends": ends,
            "state": self._state(released),
        }
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

    def _publish_cursor(self) -> None:
        """Publish how much of each queue was read; admission control uses it."""
        read_bytes = self._queues.read_bytes
        if read_bytes != self._published:
            self._sinks.append_unsequenced(cursor_name(self._settings.results), cursor_body(read_bytes))
            self._published = read_bytes

    # --- what survives

    def _state(self, released: Key) -> dict[str, Any]:
        merge = asdict(self._merge)
        merge["lanes"] = [
            (lane, progress["tick"], progress["given_up"]) for lane, progress in merge["lanes"].items()
        ]
        return {
            "gone": released,
            "late": self._late,
            "latest_s": self._latest_s,
            "merge": merge,
            "feeds": asdict(self._upstreams),
            "marked_s": self._marked_s,
            "queues": self._queues.state(),
        }

    def _restore(self, last: entry.Entry) -> None:
        state = last.header["state"]
        self._number = last.header["number"] + 1
        self._ended = last.header["ends"]
        self._late = state["late"]
        self._latest_s = state["latest_s"]
        self._schema = last.rows.schema
        self._buffer.released = (state["gone"][0], state["gone"][1], state["gone"][2])
        merge = state["merge"]
        self._merge = Merge(
            {lane: LaneProgress(at, None, given_up) for lane, at, given_up in merge["lanes"]},
            merge["settled"],
            merge["latest_s"],
            tuple((at, latest_s) for at, latest_s in merge["ahead"]),
        )
        self._marked_s = state["marked_s"]
        feeds = state["feeds"]
        known = {name: UpstreamProgress(**one) for name, one in feeds["sources"].items()}
        # The config may name others now. How long one has been silent is judged anew: clocks start at zero.
        self._upstreams = Upstreams(
            {
                name: replace(known.get(name, one), missing_since_s=None)
                for name, one in self._upstreams.sources.items()
            },
            tuple((tick, marks) for tick, marks in feeds["ahead"]),
            feeds["until_s"],
        )
        for cursor, offset, rows in self._queues.restore(state["queues"]):
            self._add_to_buffer(cursor, offset, rows)
        self._late_rows = []  # they have gone already, in order or as late
        self._copy_late(last)
        self._release()


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables)
