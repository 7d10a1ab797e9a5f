"""Which alerts are let through: dedup and hold-off. Pure; the state is a value that is written with the alerts.

An alert is held back
* with `dedup`, if its window touches or overlaps the last window of the same group in which the condition held:
  it is the same incident, whether that window was reported or held back itself;
* with `hold_off_s`, if it ends less than that after the last alert of the group that was let through.

The next alert that is let through says how many were held back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_MOST_GROUPS = 100_000


@dataclass(frozen=True, slots=True)
class GroupGate:
    """One group's state: the last alert let through, the end of its incident, and how many were held back."""

    passed_s: float
    until_s: float
    held_off: int


@dataclass(frozen=True, slots=True)
class GateState:
    """After a batch; `groups` is keyed by the group's values as JSON."""

    batch: int = -1
    groups: Mapping[str, GroupGate] = field(default_factory=dict)

    def to_json(self) -> bytes:
        groups = {key: [last.passed_s, last.until_s, last.held_off] for key, last in self.groups.items()}
        return json.dumps({"batch": self.batch, "groups": groups}).encode()

    @classmethod
    def from_json(cls, body: bytes) -> GateState:
        document = json.loads(body)
        return cls(document["batch"], {key: GroupGate(*last) for key, last in document["groups"].items()})


def step(
    last: GroupGate | None, start_s: float, end_s: float, *, dedup: bool, hold_off_s: float
) -> tuple[GroupGate, bool]:
    """Judge one alert: (what to remember, whether it is let through).

    >>> first, passed = step(None, 0.0, 10.0, dedup=True, hold_off_s=0.0)
    >>> passed, step(first, 10.0, 20.0, dedup=True, hold_off_s=0.0)[1]
    (True, False)
    >>> step(first, 30.0, 40.0, dedup=True, hold_off_s=0.0)[1]
    True
    """
    if last is None:
        return GroupGate(end_s, end_s, 0), True
    same = dedup and start_s <= last.until_s
    quiet = end_s - last.passed_s < hold_off_s
    if same or quiet:
        return GroupGate(last.passed_s, max(last.until_s, end_s), last.held_off + 1), False
    return GroupGate(end_s, max(last.until_s, end_s), 0), True


def judge(
    before: GateState,
    batch: int,
    alerts: Sequence[Mapping[str, Any]],
    *,
    dedup: bool,
    hold_off_s: float,
    longest_s: float,
) -> tuple[GateState, list[dict[str, Any]]]:
    """Let the alerts of a batch (in order of their ends) through or hold them back.

    Each has its group under `group`. `longest_s` is the longest time from the start of an alert to its end.
    """
    groups = dict(before.groups)
    passed = []
    for alert in alerts:
        key = json.dumps(alert["group"], sort_keys=True)
        last = groups.get(key)
        groups[key], through = step(
            last, alert["window_start"], alert["window_end"], dedup=dedup, hold_off_s=hold_off_s
        )
        if through:
            passed.append({**alert, "held_off": last.held_off if last is not None else 0})
    newest_s = max((alert["window_end"] for alert in alerts), default=-math.inf)
    return GateState(batch, _still_needed(groups, newest_s, hold_off_s, longest_s)), passed


def _still_needed(
    groups: Mapping[str, GroupGate], newest_s: float, hold_off_s: float, longest_s: float
) -> Mapping[str, GroupGate]:
    """Later alerts end later: forget what cannot hold them back any more and owes no number. Always bounded."""
    needed = {
        key: last
        for key, last in groups.items()
        if last.held_off or last.until_s >= newest_s - longest_s or last.passed_s + hold_off_s > newest_s
    }
    if len(needed) <= _MOST_GROUPS:
        return needed
    return dict(sorted(needed.items(), key=lambda item: item[1].until_s)[-_MOST_GROUPS:])
