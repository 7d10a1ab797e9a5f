"""Groups: processor time of one rebalance with the difference to the plan before, balance, and hand-over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.groups import equal, handover, incremental, load, mixed

_CASES: dict[str, Callable[[BenchContext], Iterator[Row]]] = {
    "equal": equal.cases,
    "incremental": incremental.cases,
    "mixed": mixed.cases,
    "load": load.cases,
    "handover": handover.cases,
}
GROUPS = tuple(_CASES)


def run(context: BenchContext) -> Iterator[Row]:
    for name, cases in _CASES.items():
        if context.wants(name):
            yield from cases(context)
