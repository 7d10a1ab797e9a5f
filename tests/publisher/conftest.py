"""What the tests of several parts of a publisher need."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest


@pytest.fixture
def url() -> str:
    """A broker of its own, shared by whoever opens it in this process."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(params=["memory", "sqlite"])
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "memory" else str(tmp_path / "outbox.db")
