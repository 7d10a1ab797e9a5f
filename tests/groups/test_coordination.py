"""The pure round of a coordinator: rules one by one, and random histories of members and leaders."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from flyball.groups.policy.coordination import Moment, coordinate, grants_by_member
from flyball.groups.policy.group import Queue
from flyball.groups.policy.reports import HandOvers, QueueLoad, Report, Session
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import HISTORY, GroupState
from tests.groups.simulated_members import MAX_DRAIN_TICKS, SESSION_TICKS, SimulatedGroup

_RULES = GroupRules()


def _at(now_s: float) -> Moment:
    return Moment(now_s, 1e9 + now_s)


def _session(name: str, token: int, count: int = 8, **report: object) -> Session:
    return Session(name, token, True, replace(Report({"orders": count}), **report))  # type: ignore[arg-type]


def _follow(state: GroupState, sessions: list[Session]) -> list[Session]:
    """The sessions after they have applied the state, without anything in flight."""
    return [
        replace(s, report=replace(s.report, owned=state.granted_to(s.member, s.token), round=state.round))
        for s in sessions
    ]


def _settle(
    state: GroupState, sessions: list[Session], now_s: float, rounds: int = 4
) -> tuple[GroupState, list[Session]]:
    for step in range(rounds):
        state = coordinate(state, sessions, _RULES, _at(now_s + 0.01 * step))
        sessions = _follow(state, sessions)
    return state, sessions


def _owners(state: GroupState) -> dict[str, list[int]]:
    return {m: [number for _, number in queues] for m, queues in grants_by_member(state.grants).items()}


def test_the_worked_example() -> None:
    state, sessions = _settle(GroupState(), [_session(f"C{n}", n + 1) for n in range(3)], 0.0)
    assert _owners(state) == {"C0": [0, 3, 6], "C1": [1, 4, 7], "C2": [2, 5]}
    state, _ = _settle(state, [s for s in sessions if s.member != "C1"], 30.0)
    assert _owners(state) == {"C0": [0, 3, 4, 6], "C2": [1, 2, 5, 7]}


def test_a_round_without_news_changes_nothing_whatever_the_order_of_sessions() -> None:
    state, sessions = _settle(GroupState(), [_session(f"m{n}", n + 1) for n in range(5)], 0.0)
    for now_s in (1.0, 25.0, 47.0):
        state_again = coordinate(state, sessions[::-1], _RULES, _at(now_s))
        assert replace(state_again, planned_s=None) == replace(state, planned_s=None)
        state = state_again


def test_the_first_change_is_planned_at_once_and_further_ones_together() -> None:
    one = [_session("m1", 1)]
    state = coordinate(GroupState(), one, _RULES, _at(100.0))
    assert _owners(state) == {"m1": list(range(8))}
    two = [*_follow(state, one), _session("m2", 2)]
    assert coordinate(state, two, _RULES, _at(100.5)).targets == state.targets
    three = [*two, _session("m3", 3)]
    later = coordinate(state, three, _RULES, _at(101.0))
    assert later.history[-1].reason == "m2, m3 joined"
    assert Counter(later.targets.values()) == {"m1": 3, "m2": 3, "m3": 2}
    assert later.history[-1].moves == later.history[-1].fewest_moves == 5


def test_a_queue_has_no_new_owner_before_the_old_one_released_it() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1)], 0.0)
    sessions.append(_session("m2", 2))
    state = coordinate(state, sessions, _RULES, _at(2.0))
    moved = sorted(state.revocations)
    assert moved == [("orders", n) for n in range(4, 8)]
    assert _owners(state) == {"m1": [0, 1, 2, 3]}  # those that stay are not touched
    assert {grant.generation for grant in state.grants.values()} == {1}
    # m1 has not seen it yet, and lists nothing of it by accident: still not free
    stale = [replace(sessions[0], report=replace(sessions[0].report, owned={}, round=1)), sessions[1]]
    assert coordinate(state, stale, _RULES, _at(2.5)) == state
    # it has seen it and drains two of them
    draining = {**state.granted_to("m1", 1), ("orders", 4): 1, ("orders", 5): 1}
    sessions[0] = replace(sessions[0], report=replace(sessions[0].report, owned=draining, round=state.round))
    state = coordinate(state, sessions, _RULES, _at(3.0))
    assert _owners(state) == {"m1": [0, 1, 2, 3], "m2": [6, 7]}
    state, _ = _settle(state, sessions, 3.5)
    assert _owners(state) == {"m1": [0, 1, 2, 3], "m2": [4, 5, 6, 7]}
    assert state.settled


def test_a_queue_of_an_expired_session_is_free() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1), _session("m2", 2)], 0.0)
    state = coordinate(state, [sessions[0], replace(sessions[1], alive=False)], _RULES, _at(8.0))
    assert _owners(state) == {"m1": list(range(8))}
    assert state.history[-1].expired == 4
    assert state.history[-1].reason == "m2 left"


def test_a_member_that_returns_in_time_has_its_queues_again() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1), _session("m2", 2)], 0.0)
    before = _owners(state)
    away = replace(sessions[1], report=replace(sessions[1].report, owned={}, stage="away"))
    state = coordinate(state, [sessions[0], away], _RULES, _at(3.0))
    assert _owners(state) == {"m1": before["m1"]}  # they wait for m2
    state = coordinate(state, [sessions[0], away], _RULES, _at(5.0))
    assert _owners(state) == {"m1": before["m1"]}
    state, _ = _settle(state, [sessions[0], away, _session("m2", 7)], 6.0)
    assert _owners(state) == before
    assert len(state.history) == 1  # no plan was needed


def test_a_second_session_of_a_member_waits_until_the_first_is_over() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1), _session("m2", 2)], 0.0)
    before = _owners(state)
    both = [*sessions, _session("m2", 7)]
    state = coordinate(state, both, _RULES, _at(3.0))
    state = coordinate(state, both, _RULES, _at(4.0))
    assert _owners(state) == {"m1": before["m1"]}
    state = coordinate(state, [both[0], replace(both[1], alive=False), both[2]], _RULES, _at(5.0))
    assert _owners(state) == before
    assert all(grant.token == 7 for grant in state.grants.values() if grant.member == "m2")
    assert len(state.history) == 1
    # the first one appears again, as after a clock that was set back: the newest still counts
    assert coordinate(state, both, _RULES, _at(5.5)).grants == state.grants


def test_a_member_that_leaves_is_out_at_once() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1), _session("m2", 2)], 0.0)
    leaving = replace(sessions[1], report=replace(sessions[1].report, stage="leaving"))
    state = coordinate(state, [sessions[0], leaving], _RULES, _at(3.0))
    assert len(state.grants) == 4  # it still drains
    gone = replace(leaving, report=replace(leaving.report, owned={}))
    state = coordinate(state, [sessions[0], gone], _RULES, _at(3.2))
    assert _owners(state) == {"m1": list(range(8))}


def test_topics_that_grow_and_shrink() -> None:
    state, _ = _settle(GroupState(), [_session("m1", 1, 4), _session("m2", 2, 4)], 0.0)
    grown = [_session("m1", 1, 4), _session("m2", 2, 6)]  # the members are restarted one by one
    state, sessions = _settle(state, _follow(state, grown), 2.0)
    assert sorted(map(len, _owners(state).values())) == [3, 3]
    assert state.history[-1].reason == "orders has 6 queues instead of 4"
    unknown = [replace(s, report=replace(s.report, topics={"orders": None})) for s in sessions]
    assert coordinate(state, unknown, _RULES, _at(5.0)).topics == {"orders": 6}
    small = [replace(s, report=replace(s.report, topics={"orders": 1})) for s in sessions]
    state, _ = _settle(state, small, 30.0)
    assert sorted(_owners(state).values()) == [[0]]
    assert not state.revocations


def test_mixed_subscriptions_and_more_members_than_queues() -> None:
    sessions = [_session(f"m{n}", n + 1, 2) for n in range(4)]
    sessions.append(Session("bills", 9, True, Report({"bills": 3})))
    state, _ = _settle(GroupState(), sessions, 0.0)
    assert _owners(state) == {"bills": [0, 1, 2], "m0": [0], "m1": [1]}


def test_a_lost_state_is_taken_from_the_reports_without_a_move() -> None:
    state, sessions = _settle(GroupState(), [_session(f"m{n}", n + 1) for n in range(3)], 0.0)
    found = coordinate(GroupState(), sessions, _RULES, _at(50.0))
    assert found.grants == state.grants
    assert not found.revocations
    assert found.round > state.round
    assert found.history[-1].moves == 0


def test_a_restored_older_state_gives_way_to_the_reports() -> None:
    old, sessions = _settle(GroupState(), [_session("m1", 1)], 0.0)
    state, sessions = _settle(old, [*sessions, _session("m2", 2)], 2.0)
    found = coordinate(old, sessions, _RULES, _at(4.0))
    assert {q: (g.member, g.generation) for q, g in found.grants.items()} == {
        q: (g.member, g.generation) for q, g in state.grants.items()
    }
    assert not any(grant.member == "m1" for queue, grant in found.grants.items() if queue[1] >= 4)


def test_two_claims_of_equal_rank_are_both_given_up_first() -> None:
    claim: dict[Queue, int] = {("orders", 0): 3}
    sessions = [_session("m1", 1, 1, owned=claim, round=3), _session("m2", 2, 1, owned=claim, round=3)]
    state = coordinate(GroupState(), sessions, _RULES, _at(0.0))
    assert not state.grants
    state, _ = _settle(state, sessions, 1.0)
    assert _owners(state) == {"m1": [0]}
    assert state.grants["orders", 0].generation > 3
    higher = [sessions[0], replace(sessions[1], report=replace(sessions[1].report, owned={("orders", 0): 4}))]
    state = coordinate(GroupState(), higher, _RULES, _at(0.0))
    assert _owners(state) == {"m2": [0]}


def test_where_the_broker_switches_a_queue_passes_at_once() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1, switches=True)], 0.0)
    sessions.append(_session("m2", 2, switches=True))
    state = coordinate(state, sessions, _RULES, _at(2.0))
    assert _owners(state) == {"m1": [0, 1, 2, 3], "m2": [4, 5, 6, 7]}
    assert not state.revocations


@pytest.mark.parametrize(
    "strategy", ["averagely", "averagely-by-circle", "consistent-hash", "machine-room-nearby"]
)
def test_other_strategies_give_every_queue_an_owner(strategy: str) -> None:
    rules = GroupRules(strategy=strategy)
    state = coordinate(GroupState(), [_session(f"m{n}", n + 1) for n in range(3)], rules, _at(0.0))
    assert len(state.grants) == 8
    if strategy == "averagely":
        assert _owners(state) == {"m0": [0, 1, 2], "m1": [3, 4, 5], "m2": [6, 7]}


def test_by_config_and_by_machine_room_leave_queues_alone() -> None:
    lists = [
        _session("m1", 1, queues=frozenset({("orders", 0), ("orders", 99)})),
        _session("m2", 2, queues=frozenset({("orders", 0), ("orders", 5)})),
    ]
    state = coordinate(GroupState(), lists, GroupRules(strategy="by-config"), _at(0.0))
    assert _owners(state) == {"m1": [0], "m2": [5]}
    rules = GroupRules(
        strategy="by-machine-room", brokers={"orders": ("r1@b",) * 3 + ("r2@b",) * 5}, rooms=("r1",)
    )
    state = coordinate(GroupState(), lists, rules, _at(0.0))
    assert _owners(state) == {"m1": [0, 2], "m2": [1]}


def test_load_decides_at_its_interval() -> None:
    rules = GroupRules(strategy="load", band=0.05, max_moves=1)
    first = [_session("m1", 1, 4), _session("m2", 2, 4)]
    state = coordinate(GroupState(), first, rules, _at(0.0))
    assert sorted(map(len, _owners(state).values())) == [2, 2]
    heavy = {("orders", 0): 0.5, ("orders", 1): 0.1, ("orders", 2): 0.3, ("orders", 3): 0.1}
    sessions = [
        replace(
            s,
            report=replace(
                s.report,
                loads={q: QueueLoad(arrival_per_s=100.0 * heavy[q], service_s=0.01) for q in s.report.owned},
            ),
        )
        for s in _follow(state, first)
    ]
    later, moved_at_s = state, None
    for now_s in range(1, 200):
        later = coordinate(later, sessions, rules, _at(float(now_s)))
        if moved_at_s is None and later.targets != state.targets:
            moved_at_s = now_s
    assert moved_at_s == 120  # 24 samples of its estimates, one every 5 s
    assert later.history[-1].reason.startswith("1 queue moves; then the largest utilisation is 0.50 (m")
    assert (len(later.history), later.history[-1].fewest_moves) == (2, None)


def test_hand_overs_are_counted_into_the_history_once() -> None:
    state, sessions = _settle(GroupState(), [_session("m1", 1)], 0.0)
    sessions = [replace(s, report=replace(s.report, hand_overs=HandOvers(3, 1))) for s in sessions]
    state = coordinate(state, sessions, _RULES, _at(1.0))
    state = coordinate(state, sessions, _RULES, _at(2.0))
    assert (state.history[-1].clean, state.history[-1].forced) == (3, 1)
    again = [_session("m1", 9, hand_overs=HandOvers(1, 0))]
    state = coordinate(state, again, _RULES, _at(3.0))
    assert (state.history[-1].clean, state.history[-1].forced) == (4, 1)


def test_the_history_is_bounded() -> None:
    state = GroupState()
    for turn in range(2 * HISTORY):
        names = ["m1", "m2"] if turn % 2 else ["m1"]
        state = coordinate(state, [_session(name, turn + 1) for name in names], _RULES, _at(30.0 * turn))
    assert len(state.history) == HISTORY


@pytest.mark.parametrize("seed", range(60))
def test_random_histories(seed: int) -> None:
    """Joins, kills, restarts, pauses, losses and changes of leader: one owner at most, and one soon after."""
    world = SimulatedGroup(seed, {"orders": 7, "bills": 4})
    rng = random.Random(seed)
    for _ in range(rng.randint(30, 90)):
        _disturb(world, rng)
        world.tick()
        world.check_single_owner()
    for session in world.running():
        session.paused, session.connected = False, True
    world.tick()  # who was paused for too long finds its session expired
    if not [s for s in world.running() if s.stage == "active"]:
        world.join("last")
    _calm(world)
    members = {s.member: set(s.topics) for s in world.running()}
    readable = {
        (t, n) for t, count in world.topics.items() for n in range(count) if any(t in m for m in members.values())
    }
    assert set(world.readers()) == readable
    assert world.state.settled
    settled_round, owners = world.state.round, world.readers()
    for _ in range(3 * SESSION_TICKS):
        world.tick()
    assert (world.state.round, world.readers()) == (settled_round, owners)
    _check_balance(world, members)


def _disturb(world: SimulatedGroup, rng: random.Random) -> None:
    running = world.running()
    event = rng.random()
    if event < 0.15 or not running:
        topics = rng.choice([["orders"], ["bills"], ["orders", "bills"]])
        world.join(f"m{rng.randint(1, 6)}", topics)  # perhaps a second session of a member that runs
        return
    session = rng.choice(running)
    if event < 0.22:
        session.running = False  # kill -9
    elif event < 0.30:
        session.paused = not session.paused
    elif event < 0.38:
        session.connected = not session.connected
    elif event < 0.43:
        session.stage = rng.choice(["away", "leaving"])
    elif event < 0.46:
        topic = rng.choice(["orders", "bills"])
        world.topics[topic] = max(1, world.topics[topic] + rng.choice([-1, 1]))
    elif event < 0.60:
        world.change_leader()


def _calm(world: SimulatedGroup) -> None:
    """The bound: sessions expire, one plan waits for the one before, and queues drain."""
    for _ in range(2 * SESSION_TICKS + 3 * MAX_DRAIN_TICKS + 6):
        world.tick()
        world.check_single_owner()


def _check_balance(world: SimulatedGroup, members: dict[str, set[str]]) -> None:
    """No queue is with a member that could give it to one with two or more fewer."""
    readers = world.readers()
    load = Counter(dict.fromkeys(members, 0))
    load.update(readers.values())
    for queue, owner in readers.items():
        for name, topics in members.items():
            assert queue[0] not in topics or load[owner] - load[name] < 2
