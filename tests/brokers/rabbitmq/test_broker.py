"""The amqp:// adapter on real servers: the contract on classic and quorum queues, then what only RabbitMQ has."""

from __future__ import annotations

from typing import Any

import pika
import pytest

from flyball.testing.broker_contract import BrokerContract
from tests.rabbitmq_nodes import VERSIONS


class _OnRabbitMq(BrokerContract):
    queue_type = ""
    quiet_s = 0.2

    @pytest.fixture(autouse=True, params=VERSIONS)
    def _server(self, request: pytest.FixtureRequest) -> None:
        amqp_url: str = (
            request.getfixturevalue("amqp_url")
            if request.param is None
            else request.getfixturevalue("rabbitmq_4").url
        )
        joint = "&" if "?" in amqp_url else "?"
        self._url = f"{amqp_url}{joint}queue_type={self.queue_type}&blocked_timeout_s=3"

    def url(self) -> str:
        return self._url

    def write_unreadable(self, channel: str) -> int:
        nested: dict[str, Any] = {}
        for _ in range(50):
            nested = {"deeper": nested}
        bad = [
            pika.BasicProperties(headers={"x-flyball-floats": ["x"]}),
            pika.BasicProperties(headers={"x-flyball-floats": 5, "n": 1}),
            pika.BasicProperties(headers={"x-flyball-floats": ["n"], "n": "one"}),
            pika.BasicProperties(headers={"x-flyball-event-time": "yesterday"}),
            pika.BasicProperties(headers={"x-flyball-event-time": "nan"}),
            pika.BasicProperties(headers={"x-flyball-key": 5}),
            pika.BasicProperties(timestamp=2**63),
            pika.BasicProperties(headers={"nested": nested}),
        ]
        with pika.BlockingConnection(pika.URLParameters(self._url.partition("?")[0])) as connection:
            plain = connection.channel()
            plain.confirm_delivery()
            for properties in bad:
                plain.basic_publish("", channel, b"foreign", properties)
            plain.basic_publish("", channel, bytes(300_000), bad[0])  # several frames
        return len(bad) + 1


class TestClassicQueues(_OnRabbitMq):
    queue_type = "classic"


class TestQuorumQueues(_OnRabbitMq):
    queue_type = "quorum"
