"""The fault driver itself: one fault at a time, each with its end, and the reason where one is not available."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from flyball.errors import InvalidValue
from flyball.testing import fault_runs
from flyball.testing.fault_runs import FaultReport, run_fault
from flyball.testing.faults import FaultUnavailable, file_faults, memory_site, nothing, sqlite_site


def test_a_clock_that_steps_and_is_right_again() -> None:
    with memory_site() as site:
        before = time.time()
        site.begin("clock")
        assert time.time() > before + 3000
        site.end()
        assert time.time() < before + 3000


def test_one_fault_at_a_time() -> None:
    with memory_site() as site:
        site.begin("clock")
        with pytest.raises(InvalidValue, match="'clock' of memory has not ended"):
            site.begin("full")
        site.end()
        site.end()  # there is none: nothing happens


def test_the_reason_why_a_fault_is_not_available() -> None:
    with memory_site() as site:
        assert site.faults == ("full", "clock")
        with pytest.raises(FaultUnavailable, match="memory has no fault 'freeze'"):
            site.begin("freeze")


def test_a_locked_file_cannot_be_written_until_the_fault_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (n)")
    actions, _ = file_faults(path)
    begin, end = actions["locked"]
    other = sqlite3.connect(path, timeout=0.0)
    begin()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("INSERT INTO t VALUES (1)")
    end()
    other.execute("INSERT INTO t VALUES (1)")
    other.close()


def test_a_report_names_what_repeats_it_and_what_is_broken() -> None:
    report = FaultReport("kafka", "kill", 7, accepted=10, lost=["a"], stuck=["consumer has not gone on"])
    assert not report.ok
    assert str(report) == "kill of kafka, seed 7: 10 accepted; 1 lost: a; 1 stuck: consumer has not gone on"


def test_a_run_sees_messages_that_a_group_beside_the_queue_never_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_runs, "_QUIET_S", 5.0)  # they never come
    with sqlite_site(tmp_path / "disk") as site:

        def lose() -> None:
            connection = sqlite3.connect(tmp_path / "disk" / "broker.db", timeout=30.0)
            connection.execute(
                "DELETE FROM broker_waiting WHERE outlet IN"
                " (SELECT id FROM broker_outlets WHERE member_group IS NOT NULL)"
            )
            connection.commit()
            connection.close()

        site.actions = {"restart": (lose, nothing)}
        report = run_fault(site, "restart", seed=1, folder=tmp_path, faces=["publisher"])
    assert report.false_confirms
    assert all(each.endswith(" in the group") for each in report.false_confirms), str(report)
