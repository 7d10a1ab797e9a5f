"""The loop of the strategy `load`: estimates, warm-up, what it says, and what it remembers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from flyball.control.state import from_plain, to_plain
from flyball.groups.policy.estimate import Estimate, follow, take_sample
from flyball.groups.policy.group import Queue
from flyball.groups.policy.load_estimates import LoadState, observe_loads
from flyball.groups.policy.load_loop import SAMPLES, LoadAnswer, LoadOptions, step_load
from flyball.groups.policy.reports import QueueLoad, Report, Stage

_TOPICS: dict[str, int | None] = {"t": None}
_OPTIONS = LoadOptions()


def _reports(
    owners: Mapping[Queue, str],
    rates: Mapping[Queue, float],
    slowdowns: Mapping[str, float],
    stages: Mapping[str, Stage] | None = None,
) -> dict[str, Report]:
    return {
        name: Report(
            _TOPICS,
            stage=(stages or {}).get(name, "active"),
            loads={
                queue: QueueLoad(arrival_per_s=rates[queue], service_s=0.01 * slowdown)
                for queue, owner in owners.items()
                if owner == name and queue in rates
            },
        )
        for name, slowdown in slowdowns.items()
    }


def _warm(
    owners: dict[Queue, str], rates: Mapping[Queue, float], slowdowns: Mapping[str, float], seconds: int = 119
) -> LoadState:
    state = LoadState()
    for now in range(seconds):
        state = observe_loads(state, _reports(owners, rates, slowdowns), owners, _OPTIONS.filtering, float(now))
    return state


def _decide(
    state: LoadState, owners: dict[Queue, str], rates: Mapping[Queue, float], slowdowns: Mapping[str, float]
) -> tuple[LoadState, LoadAnswer]:
    return step_load(state, _reports(owners, rates, slowdowns), owners, _OPTIONS, 120.0)


_SIX = [("t", number) for number in range(6)]
_OWNERS = {queue: "ab"[queue[1] % 2] for queue in _SIX}


def test_estimates_tell_their_warm_up_and_nothing_moves_before() -> None:
    rates = {queue: 50.0 if _OWNERS[queue] == "a" else 1.0 for queue in _SIX}
    state = LoadState()
    for now in range(36):
        state, answer = step_load(state, _reports(_OWNERS, rates, {"a": 1, "b": 1}), _OWNERS, _OPTIONS, float(now))
        assert answer.moved == ()
    free = {queue: owner for queue, owner in _OWNERS.items() if queue != ("t", 5)}
    reports = _reports(free, rates, {"a": 1, "b": 1})
    _, answer = step_load(state, reports, free, _OPTIONS, 36.0, topics={"t": 6})
    assert answer.owners[("t", 5)] == "b"
    assert answer.reasons[0].sentence == f"the loads are being estimated: 7 of {SAMPLES} samples"


def test_a_slow_member_is_told_from_heavy_queues_at_any_load() -> None:
    for rate in (0.1, 10.0, 30.0):
        rates = dict.fromkeys(_SIX, rate)
        state = _warm(_OWNERS, rates, {"a": 3.0, "b": 1.0})
        slowdowns = {one.name: one.slowdown.mean for one in state.members}
        assert slowdowns["a"] / slowdowns["b"] == pytest.approx(3.0, rel=0.01)
        works = [one.work_s or 0.0 for one in state.queues]
        assert max(works) == pytest.approx(min(works), rel=0.01)


def test_a_member_without_an_estimate_counts_as_the_mean_and_gets_queues() -> None:
    rates = dict.fromkeys(_SIX, 20.0)
    _, answer = _decide(
        _warm(_OWNERS, rates, {"a": 1.0, "b": 1.0}), _OWNERS, rates, {"a": 1.0, "b": 1.0, "c": 1.0}
    )
    assert sorted(answer.owners.values()) == ["a", "a", "b", "b", "c", "c"]
    assert answer.utilisation == pytest.approx({"a": 0.4, "b": 0.4, "c": 0.4})


def test_a_queue_without_an_estimate_weighs_as_the_mean_and_is_no_reason_to_move() -> None:
    owners = {**_OWNERS, ("t", 6): "a", ("t", 7): "a", ("t", 8): "a"}
    rates = dict.fromkeys(_SIX, 20.0)
    _, answer = _decide(_warm(_OWNERS, rates, {"a": 1.0, "b": 1.0}), owners, rates, {"a": 1.0, "b": 1.0})
    assert answer.utilisation == pytest.approx({"a": 1.2, "b": 0.6})
    assert answer.moved == ()
    assert answer.reasons[0].code == "balanced"


def test_moves_are_limited_and_not_repeated_while_they_are_under_way() -> None:
    queues = [("t", number) for number in range(20)]
    owners = dict.fromkeys(queues, "a")
    rates = dict.fromkeys(queues, 4.0)
    state, answer = _decide(_warm(owners, rates, {"a": 1.0, "b": 1.0}), owners, rates, {"a": 1.0, "b": 1.0})
    assert len(answer.moved) == 4
    planned = dict(answer.owners)
    # nobody has handed anything over yet: the reports are those of before
    reports = _reports(owners, rates, {"a": 1.0, "b": 1.0})
    for now in range(121, 140):
        state, answer = step_load(state, reports, planned, _OPTIONS, float(now))
        assert answer.moved == ()
    for now in (140, 160, 180, 200):
        state, answer = step_load(state, reports, planned, _OPTIONS, float(now))
        planned = dict(answer.owners)
    assert sorted(planned.values()).count("b") == 10


def test_a_queue_that_is_too_heavy_is_reported() -> None:
    rates = {**dict.fromkeys(_SIX, 1.0), ("t", 0): 90.0}
    _, answer = _decide(_warm(_OWNERS, rates, {"a": 1.0, "b": 1.0}), _OWNERS, rates, {"a": 1.0, "b": 1.0})
    assert answer.too_heavy == (("t", 0),)
    assert answer.owners[("t", 0)] == "a"
    assert [reason.code for reason in answer.reasons] == ["moved", "too-heavy"]
    assert answer.reasons[1].sentence == "queue t.0 alone is more than the fair share of any member"


def test_idle_queues_do_not_pile_up_on_one_member() -> None:
    rates = {("t", 0): 50.0, ("t", 1): 50.0, ("t", 2): 50.0}
    owners = {("t", 0): "a", ("t", 1): "b", ("t", 2): "c"}
    state = _warm(owners, rates, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    reports = _reports(owners, rates, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})
    idle = {("t", number): QueueLoad(arrival_per_s=0.0) for number in range(3, 43)}
    reports["a"] = replace(reports["a"], loads={**reports["a"].loads, **idle})
    all_owners = {**owners, **dict.fromkeys(idle, "a")}
    for now in range(119, 260):
        state = observe_loads(state, reports, all_owners, _OPTIONS.filtering, float(now))
    _, answer = step_load(state, reports, owners, _OPTIONS, 260.0, topics={"t": 43})
    counts = [list(answer.owners.values()).count(name) for name in "abcd"]
    assert max(counts) <= 2 * 43 / 4 + 1


def test_queues_of_a_member_that_is_away_wait_for_it_and_those_of_one_that_left_do_not() -> None:
    rates = dict.fromkeys(_SIX, 20.0)
    slowdowns = {"a": 1.0, "b": 1.0}
    state = _warm(_OWNERS, rates, slowdowns)
    away = _reports(_OWNERS, rates, slowdowns, {"a": "away"})
    assert step_load(state, away, _OWNERS, _OPTIONS, 120.0)[1].owners == _OWNERS
    left = {"b": away["b"]}
    assert set(step_load(state, left, _OWNERS, _OPTIONS, 120.0)[1].owners.values()) == {"b"}


def test_a_full_member_receives_less_than_arrives_and_its_depth_says_so() -> None:
    owners = {("t", 0): "a"}
    for depth, expected in ((True, 30.0), (False, 20.0)):
        state = LoadState()
        for now in range(600):
            load = QueueLoad(arrival_per_s=20.0, service_s=0.05, busy=1.0, depth=10 * now if depth else None)
            reports = {"a": Report(_TOPICS, loads={("t", 0): load})}
            state = observe_loads(state, reports, owners, _OPTIONS.filtering, float(now))
        assert state.queues[0].rate.mean == pytest.approx(expected, rel=0.01)


def test_the_state_survives_as_json() -> None:
    state = _warm(_OWNERS, dict.fromkeys(_SIX, 5.0), {"a": 1.0, "b": 2.0})
    assert from_plain(LoadState, json.loads(json.dumps(to_plain(state)))) == state


@pytest.mark.parametrize("reports_overlap", [False, True])
def test_the_error_of_an_estimate_is_that_of_its_mean(reports_overlap: bool) -> None:
    """Also when a report is an average over the last 10 s, so that one resembles the next."""
    draw = np.random.default_rng(3)
    off, errors = [], []
    for _ in range(30):
        values = draw.exponential(10.0, 1510)
        if reports_overlap:
            values = np.convolve(values, np.full(10, 0.1), mode="valid")
        found: Estimate | None = None
        for now, value in enumerate(values[:1500]):
            found = follow(found, float(value), 1.0, 60.0)
            if now % 5 == 4:
                found = take_sample(found, 5.0, 60.0)
        assert found is not None
        off.append(found.mean - 10.0)
        errors.append(found.error)
    assert 0.6 < np.mean(errors) / np.std(off) < 1.7
