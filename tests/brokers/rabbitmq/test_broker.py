"""The amqp:// adapter on real servers: the contract on classic and quorum queues, then what only RabbitMQ has."""

from __future__ import annotations

import pytest

from flyball.testing.broker_contract import BrokerContract


class _OnRabbitMq(BrokerContract):
    queue_type = ""
    quiet_s = 0.2

    @pytest.fixture(autouse=True)
    def _server(self, amqp_url: str) -> None:
        joint = "&" if "?" in amqp_url else "?"
        self._url = f"{amqp_url}{joint}queue_type={self.queue_type}&blocked_timeout_s=3"

    def url(self) -> str:
        return self._url


class TestClassicQueues(_OnRabbitMq):
    queue_type = "classic"


class TestQuorumQueues(_OnRabbitMq):
    queue_type = "quorum"
