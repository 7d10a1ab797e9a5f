"""Nodes of the benchmark `cluster` are limited, work, and leave nothing behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.errors import InvalidValue
from flyball.lab.rigs.cluster.limited_nodes import LimitedNodes
from flyball.lab.rigs.cluster.live_cluster import LiveCluster
from flyball.lab.rigs.cluster.load import Load
from flyball.lab.rigs.cluster.processor_share import ProcessorShare, can_limit

GROUPS = Path("/sys/fs/cgroup/cpu")


def test_a_part_that_linux_does_not_take_is_refused() -> None:
    if not can_limit():
        pytest.skip("quotas cannot be set here")
    share = ProcessorShare(0.1)
    try:
        with pytest.raises(InvalidValue, match=r"part must be >= 0.1 of a processor, got 0.05"):
            share.set(0.05)
    finally:
        share.close()


@pytest.mark.parametrize(
    ("by_quota", "words"), [(True, "a quota of one processor (20 %)"), (False, "of 0.8 MB/s")]
)
def test_limited_nodes_serve_a_cluster(tmp_path: Path, by_quota: bool, words: str) -> None:
    if by_quota and not can_limit():
        pytest.skip("quotas cannot be set here")

    async def scenario(nodes: LimitedNodes) -> None:
        cluster = LiveCluster(tmp_path, nodes.urls)
        async with await connect(cluster.url) as broker, Load() as load:
            await load.add_consumers(broker, cluster.queue, 1)
            await load.add_producers(broker, cluster.queue, 1, 200.0)
            async with asyncio.timeout(120.0):
                while sum(event.size for event in load.consumers[0].events) < 100:
                    await asyncio.sleep(0.05)
            assert {event.node for event in load.producers[0].events} == {"a"}

    with LimitedNodes(1, by_quota=by_quota) as nodes:
        assert words in nodes.limit(0.2).replace("so many MB/s (0.8)", "0.8 MB/s")
        server = nodes["a"].server.pids[0]
        lines = Path(f"/proc/{server}/cgroup").read_text().splitlines()
        groups = [GROUPS / line.split(":cpu:/")[1] for line in lines if ":cpu:/flyball-" in line]
        assert len(groups) == by_quota
        asyncio.run(scenario(nodes))
    assert not any(group.exists() for group in groups)
