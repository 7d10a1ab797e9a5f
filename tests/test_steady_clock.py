"""Time with a date that does not follow the machine's clock."""

from __future__ import annotations

import time

import pytest

from flyball.steady_clock import SteadyClock


def test_setting_the_clock_of_the_machine_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    assert clock.now() == pytest.approx(time.time(), abs=1.0)
    before, moment_s = clock.now(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert before <= clock.now() < before + 60.0
    assert clock.at(moment_s + 1.0) - clock.at(moment_s) == pytest.approx(1.0)
