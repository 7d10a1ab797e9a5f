"""RabbitMQ nodes of the versions that the tests run on: the installed one, and RabbitMQ 4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flyball.servers import ServerMissing
from flyball.servers.rabbitmq import RabbitMqNode

VERSIONS = [pytest.param(None, id="installed"), pytest.param(4, id="rabbitmq-4")]

_missing: dict[int | None, str] = {}


def started_node(version: int | None = None, **options: Any) -> Iterator[RabbitMqNode]:
    """Start a node for a fixture; skip the test where that version cannot be had."""
    if version in _missing:  # found out once a run: to fetch it may take a while to fail
        pytest.skip(_missing[version])
    node = RabbitMqNode(version=version, **options)
    try:
        node.start()
    except ServerMissing as reason:
        _missing[version] = str(reason)
        pytest.skip(str(reason))
    with node:
        yield node
