"""Reports and states survive JSON unchanged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flyball.groups.codec import decode_report, decode_state, encode_report, encode_state
from flyball.groups.policy.coordination import Moment, coordinate
from flyball.groups.policy.load_estimates import LoadState
from flyball.groups.policy.reports import HandOvers, QueueLoad, Report, Session
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import GroupState
from flyball.store import NewerSchema

_REPORT = Report(
    topics={"orders": 3, "bills": None},
    owned={("orders", 0): 4, ("orders", 2): 9},
    round=11,
    stage="away",
    rack="r1",
    window=7,
    switches=True,
    loads={("orders", 0): QueueLoad(10.0, 0.01, None, 0.5, 3)},
    queues=frozenset({("orders", 1)}),
    hand_overs=HandOvers(3, 1),
)


def test_a_report() -> None:
    assert decode_report(json.loads(json.dumps(encode_report(_REPORT)))) == _REPORT
    assert decode_report(json.loads(json.dumps(encode_report(Report({}))))) == Report({})


@pytest.mark.parametrize("strategy", ["sticky", "load"])
def test_a_state_in_every_phase(strategy: str) -> None:
    rules = GroupRules(strategy=strategy, racks={"orders": ("r1",)}, brokers={"orders": ("b",)}, rooms=("r",))
    sessions = [Session("m1", 1, True, replace(_REPORT, stage="active", switches=False, owned={}, round=0))]
    state = GroupState()
    for now_s in (0.0, 5.0, 30.0, 60.0):
        state = coordinate(state, sessions, rules, Moment(now_s, 1e9 + now_s))
        owned = state.granted_to("m1", 1)
        loads = {queue: QueueLoad(10.0 + now_s, 0.01, 0.1, 0.5, 3) for queue in owned}
        sessions[0] = replace(sessions[0], report=replace(sessions[0].report, owned=owned, loads=loads))
        if now_s == 5.0:
            sessions.append(Session("m2", 2, True, Report({"orders": 3})))
        assert decode_state(json.loads(json.dumps(encode_state(state)))) == state
    assert state.load.queues if strategy == "load" else state.revocations
    assert state.history


def test_what_an_older_flyball_learned_about_loads_is_learned_again() -> None:
    document = encode_state(GroupState(round=3))
    assert decode_state({**document, "load": {"other": 1}}) == GroupState(round=3, load=LoadState())


def test_a_newer_format_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        NewerSchema, match="the group's state has format 99, this Flyball supports formats up to 1"
    ):
        decode_state({**encode_state(GroupState()), "format": 99})
