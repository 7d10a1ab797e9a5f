"""The kafka:// adapter on a real broker: the contract, then what only Kafka has."""

from __future__ import annotations

import pytest

from flyball.testing.broker_contract import BrokerContract


class TestKafka(BrokerContract):
    @pytest.fixture(autouse=True)
    def _server(self, kafka_url: str) -> None:
        self._url = kafka_url

    def url(self) -> str:
        return self._url
