"""The brokers on which queues are handed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.readers.members import GroupUnderTest


@pytest.fixture(params=["sqlite", "classic", "quorum", "quorum-4", "kafka"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> GroupUnderTest:
    """A group whose members hand queues over themselves, on each of the real brokers."""
    kind = request.param
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'broker.db'}"
    elif kind == "kafka":
        url = request.getfixturevalue("kafka_url")
    elif kind == "quorum-4":
        url = request.getfixturevalue("rabbitmq_4").url
    else:
        url = f"{request.getfixturevalue('rabbitmq').url}&queue_type={kind}"
    return GroupUnderTest(url, tmp_path / "groups.db")
