"""sqlite:/// keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.testing.broker_contract import BrokerContract


class TestSqlite(BrokerContract):
    quiet_s = 0.05

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self._path = tmp_path / "broker.db"

    def url(self) -> str:
        return f"sqlite:///{self._path}"
