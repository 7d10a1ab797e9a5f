"""Hostile messages at every adapter: each is refused at the call or arrives as it is; its neighbours arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.testing.faults import FaultSite
from flyball.testing.hostile_runs import WAYS, Way, receive_hostile, send_hostile

SEED = 1
COUNT = 400
SITES = ("memory", "sqlite", "rabbitmq_queue", "rabbitmq_stream", "kafka_broker")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SITES)
def test_a_hostile_message_hurts_itself_alone(
    request: pytest.FixtureRequest, name: str, way: Way, tmp_path: Path
) -> None:
    site: FaultSite = request.getfixturevalue(name)
    report = send_hostile(site, way, seed=SEED, count=COUNT, folder=tmp_path)
    assert 0 < report.refused < COUNT
    assert report.ok, str(report)


@pytest.mark.parametrize("name", SITES[1:])
def test_a_foreign_message_hurts_itself_alone(request: pytest.FixtureRequest, name: str) -> None:
    site: FaultSite = request.getfixturevalue(name)
    report = receive_hostile(site, seed=SEED, count=COUNT)
    assert 0 < report.unreadable < COUNT
    assert report.ok, str(report)
