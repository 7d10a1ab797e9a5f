"""The brokers that a consumer is tested on."""

from __future__ import annotations

import uuid

import pytest

from tests.consumer.queues import Place, fresh


@pytest.fixture
def memory() -> Place:
    return Place(f"memory://{uuid.uuid4().hex}", fresh(), log=False)


@pytest.fixture(params=["classic", "quorum", "stream", "kafka"])
def place(request: pytest.FixtureRequest) -> Place:
    """A channel on each of the real brokers."""
    kind = request.param
    if kind in ("classic", "quorum"):
        url = request.getfixturevalue("amqp_url")
        return Place(f"{url}{'&' if '?' in url else '?'}queue_type={kind}", fresh(), log=False)
    if kind == "stream":
        return Place(request.getfixturevalue("rabbitmq").stream_url, fresh(), log=True)
    return Place(request.getfixturevalue("kafka_url"), fresh(), log=True)
