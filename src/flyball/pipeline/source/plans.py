"""Plans of micro-batches: how far a batch goes, and which task reads which part of it.

The whole plan is part of the batch's offset, so that a repeated batch is the same, whatever has happened since.

    WholeLog     everything in the log, as one stream
    SharedLanes  a pipeline's input, shared among lanes of this application: the batch is the tick
    OwnLane      the part of one lane that is an application of its own, as the splitter's ticks name it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from flyball.brokers.log_reader import LogReader, open_log_reader
from flyball.brokers.port import NoSuchChannel
from flyball.pipeline import policy
from flyball.pipeline.logs import row_batch as entry
from flyball.pipeline.logs.levels import QueueLevels, lanes_name, last_bodies, requested_lanes
from flyball.pipeline.policy import FlowControl
from flyball.pipeline.source.admission import Admission
from flyball.pipeline.source.complete_read import LossPolicy, positions_in
from flyball.pipeline.split.shares import Range, Share, cut, events_in, first_events, merged, ranges_of
from flyball.pipeline.split.ticks import Tick, UnreadTicks, ticks_name
from flyball.pipeline.telemetry import LoopRecordFile

Offset = dict[str, Any]

_LOOK_FOR_LANES_S = 1.0


class Readers:
    """Readers of logs, opened on first use; an object that holds them can be pickled."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open: dict[str, LogReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_url": self._url, "_open": {}}

    def __call__(self, log: str) -> LogReader:
        if log not in self._open:
            self._open[log] = open_log_reader(self._url, log)
        return self._open[log]

    def bounds(self, log: str) -> list[tuple[int, int]]:
        reader = self(log)
        return [reader.bounds(partition) for partition in range(reader.partitions())]

    def last_header(self, log: str) -> dict[str, Any]:
        """Header of the log's last entry, or {} if there is none."""
        try:
            for body in last_bodies(self(log), 1):
                return entry.header_of(body)
        except NoSuchChannel:
            pass
        return {}

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()


@dataclass(frozen=True, slots=True)
class Task:
    """What one Spark task reads: a share, and on behalf of lanes without any, their empty ones."""

    share: Share
    idle: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch: a number of rows, and no more than earlier batches processed in an interval.

    `flow` and `results` belong to a pipeline: flow control of its result queues, and the name of its results log.
    """

    most_rows: int
    interval_s: float
    results: str = ""
    flow: FlowControl | None = None
    balance: bool = False
    control: bool = True
    on_record: LoopRecordFile = field(default_factory=lambda: LoopRecordFile(""))

    def admission(self, lanes: Sequence[int], url: str) -> Admission:
        """Admission for these lanes; with `control` off, equal shares of the largest batch."""
        if not self.control:
            return Admission(lanes, self.most_rows, self.interval_s, paced=False)
        levels = QueueLevels(url, self.results)
        return Admission(
            lanes,
            self.most_rows,
            self.interval_s,
            levels,
            self.flow,
            self.balance and len(lanes) > 1,
            on_record=self.on_record,
        )


class Plan(Protocol):
    """Plans are pickled with the source; what they open is opened on first use."""

    ends: bool
    """whether every task says at its end how far it came"""

    def initial(self) -> Offset: ...

    def latest(self) -> Offset: ...

    def following(self, start: Offset, now_s: float) -> Offset:
        """The end of the next batch; `start` itself: there is none now."""

    def tasks(self, start: Offset, end: Offset) -> list[Task]: ...


class _OfLog:
    """A plan whose batches follow each other in a log."""

    def __init__(self, readers: Readers, loss: LossPolicy, limits: BatchLimits) -> None:
        self._readers, self._log, self._loss, self._limits = readers, loss.log, loss, limits
        self._admission: Admission | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admission": None}

    def initial(self) -> Offset:
        return {"next": [first for first, _ in self._readers.bounds(self._log)]}

    def latest(self) -> Offset:
        return {"next": [end for _, end in self._readers.bounds(self._log)]}

    def _unread(self, start: Offset) -> tuple[list[int], list[int], int]:
        """Where each partition is read on from, where it ends, and how many records were skipped so far."""
        starts, bounds, gaps = positions_in(start["next"], lambda: self._readers.bounds(self._log), self._loss)
        ends = [max(at, end) for at, (_, end) in zip(starts, bounds, strict=True)]
        return starts, ends, start.get("skipped", 0) + sum(gap.lost for gap in gaps)


class WholeLog(_OfLog):
    ends = False

    def __init__(self, readers: Readers, loss: LossPolicy, limits: BatchLimits, tasks: int) -> None:
        super().__init__(readers, loss, limits)
        self._tasks = tasks
        self._target: Offset | None = None

    def end_at_latest(self) -> None:
        """Read up to what is in the log now; batches that follow go no further."""
        self._target = self.latest()

    def all_after(self, start: Offset) -> Offset:
        """The end of a batch that takes everything in; `start` itself: there is nothing new."""
        starts, ends, skipped = self._unread(start)
        return self._offset(start, starts, ends, skipped)

    def following(self, start: Offset, now_s: float) -> Offset:
        if self._admission is None:
            self._admission = Admission((0,), self._limits.most_rows, self._limits.interval_s)
        starts, ends, skipped = self._unread(start)
        if self._target is not None:  # partitions that were added since are left to the next run
            targets: list[int] = [*self._target["next"], *starts[len(self._target["next"]) :]]
            ends = [max(at, target) for at, target in zip(starts, targets, strict=False)]
        waiting = [end - at for at, end in zip(starts, ends, strict=True)]
        stops = policy.within_budget(starts, waiting, self._admission.decide(now_s, sum(waiting)).events)
        events = sum(stops) - sum(starts)
        if events > 0:
            self._admission.begin(now_s, [events])
        return self._offset(start, starts, stops, skipped)

    def tasks(self, start: Offset, end: Offset) -> list[Task]:
        starts: list[int] = end.get("from") or start["next"]
        pieces = [
            (number, piece.start, piece.stop)
            for number, (first, stop) in enumerate(zip(starts, end["next"], strict=True))
            for piece in _in_parts(range(first, stop), self._tasks)
        ]
        return [Task(Share(number, (piece,))) for number, piece in enumerate(pieces)]

    def _offset(self, start: Offset, starts: list[int], stops: list[int], skipped: int) -> Offset:
        """With the beginning of the batch where that is not the end of the one before."""
        if stops == starts:
            return start
        end: Offset = {"next": stops}
        if starts != start["next"]:
            end["from"] = starts
        if skipped:
            end["skipped"] = skipped
        return end


class SharedLanes(_OfLog):
    """Every lane is one task; a controller decides how much comes in and which lane gets what part of it."""

    ends = True

    def __init__(self, readers: Readers, url: str, loss: LossPolicy, limits: BatchLimits, lanes: int) -> None:
        super().__init__(readers, loss, limits)
        self._url, self._lanes = url, lanes
        self._looked_s = float("-inf")

    def following(self, start: Offset, now_s: float) -> Offset:
        admission = self._admitting(now_s)
        starts, ends, skipped = self._unread(start)
        waiting = [end - at for at, end in zip(starts, ends, strict=True)]
        decided = admission.decide(now_s, sum(waiting))
        stops = policy.within_budget(starts, waiting, decided.events)
        events = sum(stops) - sum(starts)
        if events <= 0:
            return start
        before = start.get("lanes", [])
        carry = start["carry"] if before == list(admission.lanes) else [0.0] * len(admission.lanes)
        counts, left_over = policy.split(events, decided.weights, carry)
        end = {
            "next": stops,
            "lanes": list(admission.lanes),
            "left": sorted(set(before) - set(admission.lanes)),
            "shares": cut(starts, stops, counts, admission.lanes),
            "carry": list(left_over),
            "cycle": admission.cycle,
            "skipped": skipped,
        }
        admission.begin(now_s, counts)
        return end

    def tasks(self, start: Offset, end: Offset) -> list[Task]:  # noqa: ARG002 (the end says it all)
        if "lanes" not in end:
            return []  # where there is no input yet, Spark begins with a batch that ends where it starts
        members = tuple(end["lanes"])
        shares = [
            Share(lane, ranges_of(ranges), members, cycle=end["cycle"])
            for lane, ranges in zip(members, end["shares"], strict=True)
        ]
        busy = [share for share in shares if share.events]
        idle = [share for share in shares if not share.events]
        idle += [Share(lane, (), members, last=True) for lane in end["left"]]
        return [Task(share, tuple(idle) if number == 0 else ()) for number, share in enumerate(busy)]

    def _admitting(self, now_s: float) -> Admission:
        if self._admission is not None and now_s - self._looked_s < _LOOK_FOR_LANES_S:
            return self._admission
        self._looked_s = now_s
        limits = self._limits
        lanes = tuple(range(requested_lanes(self._readers(lanes_name(limits.results)), self._lanes)))
        if self._admission is None or self._admission.lanes != lanes:
            self._admission = limits.admission(lanes, self._url)
        return self._admission


class OwnLane:
    """Takes whole ticks where it can. Of a tick for which there is no room as a whole, a part comes first; event
    time goes on and the tick is marked only when the rest of it has come, or order would depend on the cut."""

    ends = True

    def __init__(self, readers: Readers, url: str, limits: BatchLimits, lane: int, tasks: int) -> None:
        self._readers, self._url, self._limits, self._lane, self._tasks = readers, url, limits, lane, tasks
        self._ticks = ticks_name(limits.results)
        self._unread: UnreadTicks | None = None
        self._admission: Admission | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_unread": None, "_admission": None}

    def initial(self) -> Offset:
        first, end = self._readers.bounds(self._ticks)[0]
        found = last_bodies(self._readers(self._ticks), 1)
        # A lane that never was a member has no part in what is there already, and need not look through it.
        joins = bool(found) and self._lane not in Tick.from_json(found[0]).assigned_events
        return {"next": [end if joins else first], "into": 0, "mark": -1, "taken": 0}

    def latest(self) -> Offset:
        return {"next": [self._readers.bounds(self._ticks)[0][1]], "into": 0, "mark": -1, "taken": 0}

    def following(self, start: Offset, now_s: float) -> Offset:
        if self._unread is None or self._admission is None:
            self._unread = UnreadTicks(self._readers(self._ticks), self._lane)
            self._admission = self._limits.admission((self._lane,), self._url)
        ticks = self._unread.after(start["next"][0])
        if not ticks:
            return start
        room = self._admission.decide(now_s, self._unread.events - start["into"]).events
        ranges: list[Range] = []
        all_events = 0.0
        more: tuple[Range, ...] = ()
        end = {**start, "members": [], "last": False}
        for offset, tick in ticks:
            takes_part = self._lane in tick.shares or self._lane in tick.leaving
            if takes_part and end["members"] and end["members"] != list(tick.members):
                break  # the combiner waits for the members that a batch names: for all of its ticks the same
            own = first_events(tick.shares.get(self._lane, ()), end["into"])[1]
            each = tick.sampling_weight(self._lane)
            if events_in(own) > room:
                if room > 0:
                    more = first_events(own, room)[0]
                    all_events += each * room
                    end |= {"into": end["into"] + room, "next": [offset], "members": list(tick.members)}
                break
            room -= events_in(own)
            all_events += each * events_in(own)
            ranges += own
            end |= {"next": [offset + 1], "into": 0}
            if takes_part:
                end |= {"mark": tick.number, "members": list(tick.members)}
            if self._lane in tick.leaving:
                end["last"] = True  # should it join again, then with a batch of its own
                break
        if end["next"] == start["next"] and end["into"] == start["into"]:
            return start
        events = events_in(ranges) + events_in(more)
        end |= {
            "ranges": merged(ranges),
            "more": more,
            "cycle": self._admission.cycle,
            "taken": start["taken"] + events,
        }
        end["stands_for"] = all_events / events if events else 1.0
        self._admission.begin(now_s, [events])
        return end

    def tasks(self, start: Offset, end: Offset) -> list[Task]:  # noqa: ARG002 (the end says it all)
        if not end.get("members"):
            return []  # no ticks yet (see SharedLanes), or only some from before this lane joined
        ranges, more = ranges_of(end["ranges"]), ranges_of(end["more"])
        parts = max(1, min(self._tasks, events_in(ranges) + events_in(more)))
        tasks = []
        for number in range(parts, 0, -1):
            size = -(-(events_in(ranges) + events_in(more)) // number)
            own, ranges = first_events(ranges, size)
            own_more, more = first_events(more, size - events_in(own))
            share = Share(
                self._lane,
                own,
                tuple(end["members"]),
                end["last"],
                end["mark"],
                own_more,
                end["cycle"],
                end["taken"],
                end["stands_for"],
            )
            tasks.append(Task(share))
        return tasks


def _in_parts(offsets: range, parts: int) -> list[range]:
    """Cut into so many pieces of almost the same length; none is empty.

    >>> _in_parts(range(5, 10), 2), _in_parts(range(5, 6), 2), _in_parts(range(5, 5), 2)
    ([range(5, 7), range(7, 10)], [range(5, 6)], [])
    """
    cuts = [offsets.start + len(offsets) * number // parts for number in range(parts + 1)]
    return [range(first, stop) for first, stop in pairwise(cuts) if stop > first]
