"""A query that failed in passing goes on from its checkpoint; one that would fail again says so at once."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flyball.brokers.port import Unreachable
from flyball.pipeline.audit import audit
from flyball.pipeline.logs.marks import END_OF_INPUT
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.policy import failures
from flyball.pipeline.run.inline import InlinePipeline
from flyball.pipeline.run.queries import FailedForGood
from tests.pipeline.run.test_inline import config, expected, publish, random_bodies, results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 29


def fail_after_writing(monkeypatch: pytest.MonkeyPatch, waiting: list[Exception]) -> None:
    """In the middle of a batch: its results have been written, and Spark does not know that yet."""
    append = LogSinks.append

    def failing(sinks: LogSinks, log: str, producer: str, batch: int, bodies: Sequence[bytes]) -> None:
        append(sinks, log, producer, batch, bodies)
        if waiting and log.startswith("results.lane"):
            raise waiting.pop(0)

    monkeypatch.setattr(LogSinks, "append", failing)


def killing_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A step of tier 1 that ends its Python worker with kill -9, as the kernel does when memory is short."""
    module = folder / "deadly_step.py"
    module.write_text(
        f"""
def once(rows):
    def work(batches):
        import os, signal
        for batch in batches:
            if "event" in batch.column("_kind").to_pylist():
                try:
                    os.close(os.open({str(folder / "killed")!r}, os.O_CREAT | os.O_EXCL))
                    os.kill(os.getpid(), signal.SIGKILL)
                except FileExistsError:
                    pass
            yield batch
    return rows.mapInArrow(work, rows.schema)
"""
    )
    monkeypatch.syspath_prepend(str(folder))
    return "deadly_step:once"


def run(pipeline: InlinePipeline) -> None:
    pipeline.start()
    try:
        pipeline.drain()
    finally:
        pipeline.stop()


def test_a_lost_worker_and_a_broker_that_was_away_cost_no_result(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(random.Random(SEED), 0, 2000)
    publish(url, [*bodies, END_OF_INPUT])
    fail_after_writing(monkeypatch, [Unreachable("nobody answers at the broker")])
    given = config(count=2).model_dump(exclude_unset=True)
    given["tier1"] = [*given["tier1"], {"call": killing_once(tmp_path, monkeypatch)}]
    settings = type(config()).model_validate(given | {"max_rows": 500})
    pipeline = InlinePipeline(url, settings, tmp_path, spark=spark)
    with caplog.at_level(logging.WARNING, "flyball.pipeline"):
        run(pipeline)
    assert (tmp_path / "killed").exists()
    assert pipeline.restarts() == {"tier1": 2}
    assert results(url) == expected(bodies), f"seed {SEED}"
    found = audit(url, settings, pipeline.totals)
    assert (found.lost, found.duplicated, found.disordered, found.late, found.waiting) == (0, 0, 0, 0, 0)
    warnings = [record.getMessage() for record in caplog.records if record.name == "flyball.pipeline"]
    assert len(warnings) == 2
    assert all(text.startswith("the query tier1 is started again in ") for text in warnings)
    assert {"Python worker exited" in text for text in warnings} == {True, False}
    assert any(text.endswith("Unreachable: nobody answers at the broker") for text in warnings)
    with sqlite3.connect(tmp_path / "loops.db") as file:
        query = "SELECT measurement, reason, code FROM receipts WHERE loop = 'query tier1' ORDER BY id"
        rows = file.execute(query)
        assert [(count, bool(reason), code) for count, reason, code in rows] == [
            (1.0, True, "restarted"),
            (2.0, True, "restarted"),
        ]


def test_what_is_wrong_for_good_is_told_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, random_bodies(random.Random(SEED), 0, 200))
    fail_after_writing(monkeypatch, [ValueError("no such thing")])
    pipeline = InlinePipeline(url, config(count=1), tmp_path, spark=spark)
    with pytest.raises(FailedForGood, match="the query tier1 failed: ValueError: no such thing"):
        run(pipeline)
    assert pipeline.restarts() == {"tier1": 0}


def test_a_broker_that_is_away_is_waited_for_longer_than_any_other_failure(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "FIRST_S", 0.001)
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    bodies = random_bodies(random.Random(SEED), 0, 200)
    publish(url, [*bodies, END_OF_INPUT])
    outage = failures.TRIES + 2
    fail_after_writing(monkeypatch, [Unreachable("nobody answers") for _ in range(outage)])
    pipeline = InlinePipeline(url, config(count=1), tmp_path, spark=spark)
    run(pipeline)
    assert pipeline.restarts()["tier1"] >= outage
    assert results(url) == expected(bodies), f"seed {SEED}"
