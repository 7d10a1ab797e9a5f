"""A successor's picture is that of the manager before it, whatever had happened."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from flyball.cluster.policy.management import Picture
from flyball.cluster.policy.proposals import Stage
from flyball.cluster.policy.rules import Kind, Rules
from flyball.cluster.policy.state import Host, State
from flyball.cluster.policy.succession import take_over
from flyball.cluster.records import ClusterRecord, decode_record, encode_record
from tests.cluster.carry_out import RandomWorld, make_state

SOME = Rules(
    auto=frozenset({Kind.GROW, Kind.NODE_LOST, Kind.EXCHANGE}),
    balance_after_s=0.0,
    shrink_after_s=2.0,
    expiry_s=30.0,
)


def read_back(state: State, now_s: float) -> Picture:
    document = json.dumps(encode_record(ClusterRecord(Picture(state, now_s=now_s))))
    return decode_record(json.loads(document)).picture


@pytest.mark.parametrize("seed", range(30))
def test_proposals_sessions_and_marks_survive(seed: int) -> None:
    hosts = [Host("x", 12), Host("y", 6, is_ready=True)]
    world = RandomWorld(SOME, make_state(12, 12, 6, hosts=hosts), np.random.default_rng(seed))
    for _ in range(60):
        world.advance()
        state = world.state
        found = read_back(state, world.now_s)
        assert found.now_s == world.now_s
        assert found.state.proposals == state.proposals
        assert found.state.sessions == state.sessions
        assert found.state.transfers == state.transfers
        assert (found.state.held, found.state.drains, found.state.next_id) == (
            state.held,
            state.drains,
            state.next_id,
        )
        assert [(one.id, one.outcome) for one in found.state.finished] == [
            (one.id, one.outcome) for one in state.finished
        ]
        nodes = {
            name: replace(node, rate_per_s=None, is_saturated=False, is_used=False, empty_since_s=None)
            for name, node in state.nodes.items()
        }
        assert found.state.nodes == nodes


@pytest.mark.parametrize("seed", range(30))
def test_a_successor_with_another_clock_has_the_same_proposals(seed: int) -> None:
    world = RandomWorld(SOME, make_state(12, 12, 6, hosts=[Host("x", 12)]), np.random.default_rng(seed))
    for _ in range(60):
        world.advance()
    before, now_s = world.state, 5.0
    after = take_over(read_back(before, world.now_s), {}, now_s).state
    shift = now_s - world.now_s
    assert not after.transfers
    assert after.next_id == before.next_id
    for id, proposal in before.proposals.items():
        if proposal.stage is Stage.PENDING or not proposal.plan.messages:
            assert after.proposals[id].expires_s == pytest.approx(proposal.expires_s + shift)
            assert (after.proposals[id].plan, after.proposals[id].stage) == (proposal.plan, proposal.stage)
    for session in after.moving:
        assert session.target == before.sessions[session.id].target
    assert all(until_s > now_s for until_s in after.held.values())
