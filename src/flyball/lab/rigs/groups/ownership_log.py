"""Who read which queue when, from the logs of member processes and the faults that they suffered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A member read a queue from `start_s` to `end_s`."""

    member: str
    queue: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Absence:
    """A member was killed (`final`: its queues are no longer read by it), or stood still and then read on."""

    start_s: float
    end_s: float
    final: bool


def read_spans(
    lines: Mapping[str, Iterable[str]], absences: Mapping[str, Sequence[Absence]], until_s: float
) -> list[Span]:
    """The spans of all members.

    >>> lines = {"a": ["1.0 + 0", "9.0 - 0"], "b": ["2.0 + 1"]}
    >>> gone = {"a": [Absence(3.0, 5.0, final=False)], "b": [Absence(4.0, 6.0, final=True)]}
    >>> [(span.member, span.queue, span.start_s, span.end_s) for span in read_spans(lines, gone, 10.0)]
    [('a', 0, 1.0, 3.0), ('a', 0, 5.0, 9.0), ('b', 1, 2.0, 4.0)]
    """
    spans: list[Span] = []
    for member, entries in lines.items():
        gone = sorted(absences.get(member, ()), key=lambda absence: absence.start_s)
        since: dict[int, float] = {}
        events = [(float(at), sign, int(queue)) for at, sign, queue in (line.split() for line in entries)]
        events += [(absence.start_s, "killed", -1) for absence in gone if absence.final]
        for at_s, sign, queue in sorted(events):
            if sign == "+":
                since.setdefault(queue, at_s)
            elif sign == "-" and queue in since:
                spans.append(Span(member, queue, since.pop(queue), at_s))
            elif sign == "killed":
                spans += [Span(member, each, start_s, at_s) for each, start_s in since.items()]
                since.clear()
        spans += [Span(member, each, start_s, until_s) for each, start_s in since.items()]
    return sorted(
        (part for span in spans for part in _without(span, absences.get(span.member, ()))),
        key=lambda span: (span.member, span.queue, span.start_s),
    )


def _without(span: Span, absences: Sequence[Absence]) -> list[Span]:
    """A span less the times at which its member stood still."""
    parts = [span]
    for gone in absences:
        if gone.final:
            continue
        cut = []
        for part in parts:
            before = (part.start_s, min(part.end_s, gone.start_s))
            after = (max(part.start_s, gone.end_s), part.end_s)
            cut += [Span(span.member, span.queue, *each) for each in (before, after) if each[1] > each[0]]
        parts = cut
    return parts


def count_readers(
    spans: Iterable[Span], queues: int, start_s: float, end_s: float, step_s: float = 0.02
) -> list[list[list[str]]]:
    """For each queue and each step of time, who read it."""
    steps = max(1, round((end_s - start_s) / step_s))
    readers: list[list[list[str]]] = [[[] for _ in range(steps)] for _ in range(queues)]
    for span in spans:
        first = max(0, round((span.start_s - start_s) / step_s))
        last = min(steps, round((span.end_s - start_s) / step_s))
        for step in range(first, last):
            readers[span.queue][step].append(span.member)
    return readers
