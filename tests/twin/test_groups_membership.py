"""Membership over an unreliable network: broker mode owns every queue once, client mode does not."""

from __future__ import annotations

import numpy as np
import pytest

from flyball.errors import InvalidValue
from flyball.groups.policy.client_mode import Replica, View, choose_queues, forget_silent, note_heartbeat
from flyball.groups.policy.rules import GroupRules
from flyball.groups.policy.state import Subscription
from flyball.twin.groups.faults import Fault, FaultKind, Network
from flyball.twin.groups.membership import Scenario, run_membership

_T = Subscription(frozenset({"t"}))


def _random_scenario(seed: int) -> Scenario:
    draw = np.random.default_rng(seed)
    members = int(draw.integers(2, 8))
    names = [f"m{number:02d}" for number in range(members)]
    kinds: tuple[FaultKind, ...] = ("down", "paused", "cut off")
    faults = []
    for _ in range(int(draw.integers(1, 6))):
        start_s = float(draw.uniform(5.0, 80.0))
        hit = tuple(draw.choice(names, int(draw.integers(1, members + 1)), replace=False).tolist())
        faults.append(Fault(kinds[int(draw.integers(3))], hit, start_s, start_s + float(draw.uniform(0.5, 25.0))))
    return Scenario(
        int(draw.integers(1, 13)),
        tuple(draw.uniform(0.0, 20.0, members).tolist()),
        tuple(faults),
        Network(loss=float(draw.uniform(0.0, 0.4)), late=float(draw.uniform(0.0, 0.1))),
        until_s=140.0,
    )


@pytest.mark.parametrize("seed", range(12))
def test_in_broker_mode_no_queue_is_owned_twice_whatever_happens(seed: int) -> None:
    assert run_membership(_random_scenario(seed), "broker", seed).twice_s() == 0.0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("down", ("m00",), 40.0, 70.0),
        Fault("down", ("m00", "m01", "m03"), 40.0, 70.0),
        Fault("paused", ("m00",), 40.0, 60.0),
        Fault("cut off", ("m02",), 40.0, 70.0),
    ],
    ids=lambda fault: f"{fault.kind} {'+'.join(fault.members)}",
)
def test_in_broker_mode_no_queue_is_unowned_longer_than_a_session_and_two_heartbeats(fault: Fault) -> None:
    scenario = Scenario(9, (0.5,) * 4, (fault,), until_s=110.0)
    found = run_membership(scenario, "broker", 3)
    assert found.twice_s() == 0.0
    assert 0.0 < found.longest_unowned_s(after_s=20.0) <= scenario.session_timeout_s + 2 * scenario.heartbeat_s
    assert (found.readers[-1] == 1).all()


def test_in_client_mode_a_member_that_is_cut_off_reads_on_beside_its_successor() -> None:
    scenario = Scenario(6, (0.5,) * 3, (Fault("cut off", ("m01",), 40.0, 80.0),), until_s=110.0)
    client, broker = run_membership(scenario, "client", 1), run_membership(scenario, "broker", 1)
    assert client.twice_s(after_s=20.0) > 2 * 25.0  # two queues, for most of the time
    assert broker.twice_s() == 0.0
    assert (client.readers[-1] == 1).all()


def test_client_mode_ends_with_one_owner_for_each_queue_when_nothing_goes_wrong() -> None:
    found = run_membership(Scenario(7, (0.0, 3.0, 20.0), until_s=70.0), "client", 2)
    assert (found.readers[-1] == 1).all()
    assert sorted(np.bincount(found.owner[-1])) == [2, 2, 3]


def test_a_replica_forgets_silent_members_and_keeps_the_largest_number_of_queues() -> None:
    replica = note_heartbeat(Replica(), "b", _T, {"t": 4}, 0.0)
    replica = note_heartbeat(replica, "a", _T, {"t": 8}, 5.0)
    replica = note_heartbeat(replica, "b", _T, {"t": 4}, 5.0)
    assert (list(replica.view.members), replica.view.topics) == (["a", "b"], {"t": 8})
    replica = note_heartbeat(replica, "b", _T, {}, 10.0)
    assert list(forget_silent(replica, 6.0, 10.9).view.members) == ["a", "b"]
    assert list(forget_silent(replica, 6.0, 11.0).view.members) == ["b"]


def test_members_with_the_same_view_share_all_queues_and_others_do_not() -> None:
    rules = GroupRules("averagely")
    view = View(dict.fromkeys("abc", _T), {"t": 8})
    shares = [choose_queues(view, name, rules) for name in "abc"]
    assert sorted(queue for share in shares for queue in share) == [("t", number) for number in range(8)]
    alone = choose_queues(View({"c": _T}, {"t": 8}), "c", rules)
    assert len(alone) == 8
    assert choose_queues(view, "d", rules) == frozenset()
    with pytest.raises(InvalidValue, match="strategy must need no assignment before, such as 'averagely'"):
        choose_queues(view, "a", GroupRules("sticky"))
