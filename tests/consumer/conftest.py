"""The brokers that a consumer is tested on."""

from __future__ import annotations

import uuid

import pytest

from tests.consumer.queues import ChannelUnderTest, fresh


@pytest.fixture
def memory() -> ChannelUnderTest:
    return ChannelUnderTest(f"memory://{uuid.uuid4().hex}", fresh(), log=False)


@pytest.fixture(params=["classic", "quorum", "stream", "kafka"])
def channel(request: pytest.FixtureRequest) -> ChannelUnderTest:
    """A channel on each of the real brokers."""
    kind = request.param
    if kind in ("classic", "quorum"):
        url = request.getfixturevalue("amqp_url")
        return ChannelUnderTest(f"{url}{'&' if '?' in url else '?'}queue_type={kind}", fresh(), log=False)
    if kind == "stream":
        return ChannelUnderTest(request.getfixturevalue("rabbitmq").stream_url, fresh(), log=True)
    return ChannelUnderTest(request.getfixturevalue("kafka_url"), fresh(), log=True)
