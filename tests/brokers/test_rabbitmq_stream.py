"""The rabbitmq-stream:// adapter on a real server: the contract, then what only streams have."""

from __future__ import annotations

import pytest

from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.broker_contract import BrokerContract


class TestStreams(BrokerContract):
    @pytest.fixture(autouse=True)
    def _server(self, rabbitmq: RabbitMqNode) -> None:
        self._url = rabbitmq.stream_url

    def url(self) -> str:
        return self._url
