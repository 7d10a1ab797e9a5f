"""What a program sees of a client that holds a goal, whichever client it is."""

from __future__ import annotations

from dataclasses import dataclass

from flyball.consumer.external.loop import Regulation
from flyball.consumer.policy import Goal
from flyball.control.record import LoopRecord


@dataclass(frozen=True, slots=True)
class RegulatedStats:
    """Counts since the start, and what the last step measured (None: nothing yet).

    `handed` messages were given to the program, `done` of them are done. `window` is how many may be in flight;
    where that is less than one, messages are handed over at `pace_per_s` instead.
    """

    handed: int
    done: int
    in_flight: int
    window: float
    pace_per_s: float | None
    rate_per_s: float | None
    residence_s: float | None


class Regulated:
    """What both kinds of clients have in common: the goal, and what its loop does."""

    def __init__(self, loop: Regulation) -> None:
        self._loop = loop

    @property
    def goal(self) -> Goal:
        """What is held. It may be changed while the program runs, to another value of the same kind."""
        return self._loop.goal

    @goal.setter
    def goal(self, goal: str | Goal) -> None:
        self._loop.goal = goal

    @property
    def window(self) -> float:
        """How many messages may be in flight. A fraction is the mean of the two whole numbers beside it."""
        return self._loop.wanted

    @property
    def in_flight(self) -> int:
        """Messages that the program has and that are not done."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """Why the goal is not held at the moment, if so; else empty."""
        return self._loop.status

    @property
    def stats(self) -> RegulatedStats:
        loop, seen = self._loop, self._loop.seen
        return RegulatedStats(
            loop.sensing.handed,
            loop.sensing.done,
            self.in_flight,
            loop.wanted,
            loop.pace_per_s,
            None if seen is None else seen.rate_per_s,
            None if seen is None else seen.residence_s,
        )

    def steps(self) -> list[LoopRecord]:
        """The newest steps of the loop: what was measured, what was decided, and why."""
        return list(self._loop.records)
