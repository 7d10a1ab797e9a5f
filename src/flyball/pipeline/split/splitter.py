"""The splitter: shares the input among lanes that are Spark applications of their own.

At every tick it reads the end of the input log and assigns the new offsets to the lanes, by weights. It reads no
events: a tick names ranges of offsets. The weights follow the lanes' predicted delays (policy.Balancer), which it
measures in their result queues; a lane that is far behind gets nothing until it has caught up. When every lane has
more waiting than one batch takes, the rest stays in the input, to be shared later by better weights.

Its whole state is in its last tick, so it continues after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flyball.brokers.log_reader import open_log_reader
from flyball.control.record import LoopRecord
from flyball.pipeline import policy
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.levels import LanesRequest, QueueLevels, lanes_name, last_bodies
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy import Balancer, BalanceState, LaneDelay
from flyball.pipeline.source.complete_read import LossPolicy, positions_in
from flyball.pipeline.split.shares import cut
from flyball.pipeline.split.ticks import Tick, ticks_name
from flyball.pipeline.telemetry import balance_record

_PRODUCER = "splitter"
_LOG_BYTES = 256_000_000
_LOOK_FOR_LANES_S = 0.5
_LOOK_AT_LANES_S = 0.2
_MOST_OF_A_LANE = 10_000
"""events of one tick: a lane can only mark whole ticks, and others wait for its mark"""


@dataclass(frozen=True, slots=True)
class SplitterSettings:
    """`ahead`: how many events may wait for each lane."""

    input: str
    results: str
    lanes: int
    balance: bool
    ahead: int
    tick_s: float
    fail_on_data_loss: bool = True

    @classmethod
    def of(cls, config: PipelineConfig) -> SplitterSettings:
        lanes = config.lanes
        return cls(
            config.input,
            config.results,
            lanes.count,
            lanes.balance and lanes.control,
            config.max_rows,
            lanes.tick_s,
            config.fail_on_data_loss,
        )


def declare_ticks(sinks: LogSinks, results: str) -> None:
    sinks.declare(ticks_name(results), max_bytes=_LOG_BYTES)


class Splitter:
    """One tick at a time (`step`); `open` goes on where an earlier one stopped."""

    def __init__(
        self,
        url: str,
        sinks: LogSinks,
        settings: SplitterSettings,
        clock: Callable[[], float] = time.monotonic,
        on_record: Callable[[LoopRecord], None] = lambda _: None,
    ) -> None:
        self._on_record = on_record
        self._url, self._sinks, self._settings, self._clock = url, sinks, settings, clock
        self._input = open_log_reader(url, settings.input)
        self._wanted = open_log_reader(url, lanes_name(settings.results))
        self._levels = QueueLevels(url, settings.results)
        self._last = Tick(-1, (), {}, (), (), (), {})
        self._members: tuple[int, ...] = ()
        self._weights: tuple[float, ...] = ()
        self._balanced = settings.balance
        self._balancer = Balancer(1)
        self._balance: BalanceState | None = None
        self._lanes: dict[int, LaneDelay] = {}
        self._batches: dict[int, int] = {}
        self._delivered: dict[int, int] = {}
        self._delays_s: tuple[float | None, ...] = ()
        self.behind = False
        self._looked_for_s = self._looked_at_s = self._balanced_s = float("-inf")

    def open(self) -> None:
        settings = self._settings
        declare_ticks(self._sinks, settings.results)
        self._sinks.add(ticks_name(settings.results), _PRODUCER, max_bytes=_LOG_BYTES)
        with open_log_reader(self._url, ticks_name(settings.results)) as reader:
            for body in last_bodies(reader, 1):
                self._last = Tick.from_json(body)
                # Should the broker not have taken its repeat as one: lanes go by numbers.
                self._join(self._last.members, self._last.weights)

    @property
    def weights(self) -> tuple[float, ...]:
        return self._weights

    def step(self) -> bool:
        """Assign new input to the lanes; False: there was none, or the lanes have enough.

        A tick is bounded; `behind` tells whether more could be assigned at once.
        """
        now_s = self._clock()
        self._look_for_lanes(now_s)
        self._look_at_lanes(now_s)
        self._rebalance(now_s)
        weights = self._weights
        if self._balanced:
            weights = policy.without_laggards(weights, [self._lanes[lane].now_s for lane in self._members])
        starts, stops = self._new(weights)
        events = sum(stops) - sum(starts)
        left = tuple(sorted(set(self._last.members) - set(self._members)))
        same = self._last.members == self._members
        if events <= 0 and same:
            return False
        carry = self._last.carry if same else (0.0,) * len(self._members)
        counts, carry_after = policy.split(events, weights, carry)
        # Every other tick begins with the last lane: its part goes on from the tick before, as one range with it.
        turn = -1 if self._last.number % 2 else 1
        shares = cut(starts, stops, counts[::turn], self._members[::turn])[::turn]
        given = dict(self._last.assigned_events)
        for lane, count in zip(self._members, counts, strict=True):
            given[lane] = given.get(lane, 0) + count
        tick = Tick(
            self._last.number + 1,
            tuple(stops),
            dict(zip(self._members, shares, strict=True)),
            left,
            carry_after,
            self._weights,
            given,
            self._delays_s,
        )
        self._sinks.append(ticks_name(self._settings.results), _PRODUCER, tick.number, [tick.to_json()])
        self._last = tick
        return True

    def close(self) -> None:
        self._input.close()
        self._wanted.close()
        self._levels.close()

    def _new(self, weights: Sequence[float]) -> tuple[list[int], list[int]]:
        """Start offsets of this tick, and its end offsets."""
        loss = LossPolicy(self._settings.input, self._settings.fail_on_data_loss)
        starts, bounds, _ = positions_in(self._last.next, self._bounds, loss)
        backlogs = [self._backlog(lane) for lane in self._members]
        room = policy.room_ahead(self._settings.ahead, weights, backlogs)
        waiting = [max(0, end - at) for at, (_, end) in zip(starts, bounds, strict=True)]
        most = _MOST_OF_A_LANE * len(self._members)
        self.behind = min(room, sum(waiting)) > most
        return starts, policy.within_budget(starts, waiting, min(room, most))

    def _bounds(self) -> list[tuple[int, int]]:
        return [self._input.bounds(partition) for partition in range(self._input.partitions())]

    def _backlog(self, lane: int) -> int:
        """Events assigned to a lane whose results are not in its queue yet."""
        return max(0, self._last.assigned_events.get(lane, 0) - self._delivered.get(lane, 0))

    def _look_for_lanes(self, now_s: float) -> None:
        if now_s - self._looked_for_s < _LOOK_FOR_LANES_S:
            return
        self._looked_for_s = now_s
        wanted = LanesRequest.read(self._wanted)
        balanced = self._settings.balance if wanted.balance is None else wanted.balance
        if self._balanced and not balanced:
            self._weights, self._balance = policy.equal_weights(len(self._members)), None
        self._balanced = balanced
        lanes = tuple(range(self._settings.lanes if wanted.lanes is None else wanted.lanes))
        if lanes != self._members:
            self._join(lanes, policy.with_joined(dict(zip(self._members, self._weights, strict=True)), lanes))

    def _join(self, lanes: tuple[int, ...], weights: tuple[float, ...]) -> None:
        self._members, self._weights = lanes, weights
        self._balancer = Balancer(len(lanes))
        self._balance = None
        self._lanes = {lane: self._lanes.get(lane, LaneDelay()) for lane in lanes}
        self._looked_at_s = float("-inf")

    def _look_at_lanes(self, now_s: float) -> None:
        if now_s - self._looked_at_s < _LOOK_AT_LANES_S:
            return
        self._looked_at_s = now_s
        for lane, level in zip(self._members, self._levels.read(self._members), strict=True):
            self._delivered[lane] = level.events_read_total
            delay = self._lanes[lane]
            if level.cycle is not None and level.batch != self._batches.get(lane):
                delay = delay.with_batch(now_s, *level.cycle)
                self._batches[lane] = level.batch
            self._lanes[lane] = delay.with_backlog(now_s, self._backlog(lane))

    def _rebalance(self, now_s: float) -> None:
        if now_s - self._balanced_s < policy.BALANCE_EVERY_S:
            return
        self._balanced_s = now_s
        self._delays_s = tuple(self._lanes[lane].predicted_s for lane in self._members)
        load = max((self._lanes[lane].times.load for lane in self._members), default=0.0)
        self._lanes = {lane: delay.read() for lane, delay in self._lanes.items()}
        if not self._balanced:
            return
        before = self._balance or self._balancer.initial(self._weights)
        self._balance = self._balancer.step(before, now_s, policy.BALANCE_EVERY_S, self._delays_s, load)
        known = [delay for delay in self._delays_s if delay is not None]
        if len(known) == len(self._members) > 1:
            self._on_record(balance_record(now_s, known, self._weights, self._balance.weights))
        self._weights = self._balance.weights
