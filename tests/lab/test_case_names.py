"""Results of different commits are compared by case, so case names do not follow names in the code."""

from __future__ import annotations

from pathlib import Path

from flyball.control.controllers.pi import Pi
from flyball.lab.bench import BenchContext
from flyball.lab.rigs.consumer.contenders import contenders
from flyball.lab.rigs.consumer.runs import rows


def test_cases_of_the_consumer_name_their_contenders_as_ever() -> None:
    context = BenchContext("consumer", quick=True, seed=1, workdir=Path(), note=lambda _: None)
    found = {contender.name: [{"std": 1.0}] for contender in contenders(400.0, 60.0, Pi(0.0, 0.006))}
    assert [row.case for row in rows(context, "goal 400", found, {}, {})] == [
        "goal 400 std",
        "goal 400 std, S1's PI",
        "goal 400 std, S1's PID",
        "goal 400 std, S1's P, Kp=0.01",
        "goal 400 std, static PI of ours",
        "goal 400 std, proportional rule",
        "goal 400 std, best fixed window",
        "goal 400 std, our default, paced",
    ]
