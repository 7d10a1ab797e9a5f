"""Proposals of a running cluster: approved, rejected, stopped, and kept when the manager is killed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from flyball import Message, connect
from flyball.cluster.broker import ClusterBroker
from flyball.cluster.cluster_store import ClusterStore
from flyball.cluster.policy.proposals import Proposal, Stage
from flyball.cluster.policy.rules import Kind
from flyball.cluster.policy.state import Mark
from flyball.cluster.records import ClusterRecord
from flyball.errors import InvalidValue
from flyball.store import open_database
from flyball.store.protocol import Conflict
from tests.cluster.live import QUEUE, LiveCluster, ManagerProcess, in_event_loop


async def open_broker(url: str) -> ClusterBroker:
    broker = await connect(url)
    assert isinstance(broker, ClusterBroker)
    return broker


def pending(record: ClusterRecord) -> list[Proposal]:
    return [one for one in record.state.proposals.values() if one.stage is Stage.PENDING]


def without_times(proposal: Proposal) -> Proposal:
    return replace(proposal, created_s=0.0, expires_s=0.0)


@in_event_loop
async def test_a_proposal_waits_survives_its_manager_and_is_carried_out_when_approved(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path, auto=[])
    async with ManagerProcess(cluster.url) as manager, await open_broker(f"{cluster.url}&manage=no") as clients:
        senders = [await clients.connect("producer") for _ in range(2)]
        for sender in senders:
            await sender.send_batch([Message(b"x") for _ in range(30)])
        await cluster.wait_for(lambda record: [one.length for one in record.state.nodes.values()] == [30, 30])
        cluster.drain("b")
        (proposal,) = pending(await cluster.wait_for(lambda record: bool(pending(record))))
        assert (proposal.kind, proposal.plan.mark) == (Kind.DRAIN, (("b", Mark.MAINTENANCE),))
        assert len(proposal.plan.sessions) == 1
        await manager.kill()
        async with ManagerProcess(cluster.url) as second:
            before = cluster.read().asked_time_s
            record = await cluster.wait_for(lambda record: record.asked_time_s > before + 1.0)  # rounds later
            assert [without_times(one) for one in pending(record)] == [without_times(proposal)]
            assert record.state.nodes["b"].mark is None
            answer = await cluster.wait_for_answer("approve", proposal.id)
            assert (answer.is_granted, answer.text.startswith(proposal.id)) == (True, True)
            assert cluster.read().state.nodes["b"].mark is Mark.MAINTENANCE
            await second.kill()  # in the middle of it: what was approved goes on
        async with ManagerProcess(cluster.url):
            await cluster.wait_for(
                lambda record: record.state.nodes["b"].length == 0 and not record.state.producers["b"]
            )
            assert [sender.node for sender in senders] == ["a", "a"]
            assert await clients.depth(QUEUE) == 60
            assert not pending(cluster.read())
            again = await cluster.wait_for_answer("approve", proposal.id)
            assert (again.is_granted, again.text) == (False, f"{proposal.id} is over: everything is done")


@in_event_loop
async def test_a_rejected_proposal_does_not_return_not_even_with_another_manager(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path, auto=["node_lost"])
    async with ManagerProcess(cluster.url) as manager:
        await cluster.wait_for(lambda record: len(record.state.members) == 2)
        cluster.drain("b")
        (proposal,) = pending(await cluster.wait_for(lambda record: bool(pending(record))))
        answer = await cluster.wait_for_answer("reject", proposal.id)
        assert answer.text == f"{proposal.id} is rejected: the same is not proposed again for 600 s"
        await manager.kill()
    async with ManagerProcess(cluster.url):
        before = cluster.read().asked_time_s
        record = await cluster.wait_for(lambda record: record.asked_time_s > before + 1.0)
        assert not record.state.proposals
        assert record.state.nodes["b"].mark is None
        answer = await cluster.wait_for_answer("stop", proposal.id)
        assert (answer.is_granted, answer.text) == (False, f"{proposal.id} is over: an operator rejected it")
        answer = await cluster.wait_for_answer("approve", "grow-99")
        assert (answer.is_granted, answer.text) == (False, "there is no proposal grow-99")


@in_event_loop
async def test_advise_changes_nothing_until_the_mode_is_on(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path, mode="advise")
    async with await open_broker(cluster.url):
        await cluster.wait_for(lambda record: len(record.state.members) == 2)
        cluster.drain("b")
        (proposal,) = pending(await cluster.wait_for(lambda record: bool(pending(record))))
        answer = await cluster.wait_for_answer("approve", proposal.id)
        assert not answer.is_granted
        assert answer.text == "the mode is advise: nothing is carried out; set the mode to on"
        cluster.configure(mode="on")
        record = await cluster.wait_for(lambda record: record.state.nodes["b"].mark is Mark.MAINTENANCE)
        assert record.history[-1].action == "mark b: maintenance"
        assert any(entry.action == f"propose {proposal.id}: empty b" for entry in record.history)


@in_event_loop
async def test_shadow_logs_what_it_would_have_done_once(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path, mode="shadow")
    async with await open_broker(cluster.url) as broker:
        await broker.connect("producer")
        await cluster.wait_for(lambda record: len(record.state.sessions) == 1)
        cluster.drain("a")
        record = await cluster.wait_for(lambda record: any("shadow" in one.action for one in record.history))
        later = await cluster.wait_for(lambda now: now.asked_time_s > record.asked_time_s + 1.0)
        shadows = [entry.action for entry in later.history if entry.action.startswith("shadow")]
        assert shadows == ["shadow drain-1: empty a, move 1 sessions"]
        assert later.state.nodes["a"].mark is None


def test_a_request_is_answered_or_withdrawn_never_both(tmp_path: Path) -> None:
    cluster = LiveCluster(tmp_path)
    with closing(open_database(cluster.store)) as database:
        store = ClusterStore(database, "shop")
        lease = store.campaign("m#1", 60.0)
        assert lease is not None
        first, second = store.ask("approve", "grow-1"), store.ask("reject", "grow-1")
        assert store.requests() == (first.request, second.request)
        assert store.withdraw(first)
        record = store.read()
        with pytest.raises(Conflict, match="was withdrawn"):
            store.write_answered(record.state, record, lease, (first.request, second.request))
        assert store.requests() == (second.request,)  # nothing was written, nothing removed
        store.write_answered(record.state, record, lease, (second.request,))
        assert not store.withdraw(second)
        for number in range(100):
            store.ask("stop", f"grow-{number}")
        with pytest.raises(InvalidValue, match="has 100 requests that nobody answered"):
            store.ask("stop", "grow-1")
