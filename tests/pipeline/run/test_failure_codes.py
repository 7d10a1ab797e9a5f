"""What kind a failure of a Spark query is, wherever in Spark it happens: no word of its text decides."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from flyball.brokers import Message, connect
from flyball.brokers.port import Unconfirmed, Unreachable
from flyball.pipeline.config.pipeline import PipelineConfig
from flyball.pipeline.logs.writer import SinkFailed
from flyball.pipeline.policy.failures import FailureKind
from flyball.pipeline.run.failure_codes import CodedFailure, coded_failures, kind_of, kind_of_query
from flyball.pipeline.run.queries import FailedForGood, Queries
from flyball.servers.rabbitmq import RabbitMqNode, installed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# What a failure says must not matter.
MISLEADING = "flyball.brokers.port.Unreachable, java.io.EOFException: Python worker exited unexpectedly"


def publish(url: str, log: str) -> None:
    async def send() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log")
            for result in await (await broker.sender(log)).send_batch([Message(b"one"), Message(b"two")]):
                assert result.ok

    asyncio.run(send())


def error_in_batch(
    spark: SparkSession, folder: Path, work: Callable[[Iterator[Any]], Iterator[Any]]
) -> tuple[Exception, StreamingQuery]:
    """What `foreachBatch` raises when a Python function fails on the rows of a batch, and the query that ended."""
    url = f"sqlite:///{folder / 'broker.db'}"
    publish(url, "events")
    stream = spark.readStream.format("flyball").options(url=url, log="events", format="raw").load()
    errors: list[Exception] = []

    def handle(rows: DataFrame, _batch: int) -> None:
        try:
            rows.mapInArrow(work, rows.schema).toArrow()
        except Exception as error:
            errors.append(error)
            raise

    query = (
        stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(folder / "checkpoint")).start()
    )
    while query.isActive:
        time.sleep(0.05)
    return errors[0], query


def test_a_killed_worker_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    error, _ = error_in_batch(spark, tmp_path, work)
    assert kind_of(error) == FailureKind.PROCESS_LOST


def planners() -> set[psutil.Process]:
    """Processes that plan batches, of this test run alone: others may run Spark here too."""
    name, found = "pyspark.sql.streaming.python_streaming_source_runner", set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, or is a zombie
            if name in process.cmdline():
                found.add(process)
    return found


def test_a_killed_planner_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, "events")
    before = planners()
    stream = spark.readStream.format("flyball").options(url=url, log="events", format="raw").load()
    writer = stream.writeStream.foreachBatch(lambda _rows, _batch: None)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    (planner,) = planners() - before
    planner.kill()
    while query.isActive:
        time.sleep(0.05)
    assert kind_of_query(query) == FailureKind.PROCESS_LOST


def test_an_error_of_a_step_is_permanent_whatever_it_says(spark: SparkSession, tmp_path: Path) -> None:
    misleading = MISLEADING  # the function is pickled, this module is not

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            raise ValueError(misleading)
        yield from batches

    error, query = error_in_batch(spark, tmp_path, work)
    assert MISLEADING in str(error)
    assert MISLEADING in str(query.exception())
    assert (kind_of(error), kind_of_query(query)) == (FailureKind.PERMANENT, FailureKind.PERMANENT)


def test_a_broker_that_is_away_is_known_by_its_code_in_readers_and_planners(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not installed():
        pytest.skip("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    config = PipelineConfig.model_validate({"columns": "event_time double", "event_time": "event_time"})
    with RabbitMqNode() as node:
        publish(node.stream_url, "events")
        queries = Queries(spark, node.stream_url, config, tmp_path)

        def take_the_broker_away(rows: DataFrame, _batch: int) -> None:
            node.stop()
            rows.toArrow()

        raw = {"log": "events", "format": "raw"}
        try:
            with caplog.at_level(logging.WARNING, "flyball.pipeline"):
                queries.start("reader", queries.stream(raw), take_the_broker_away, close_windows=False)
                while not queries.restarts()["reader"]:
                    queries.check()
                    time.sleep(0.05)
                queries.start("planner", queries.stream(raw), lambda _rows, _batch: None, close_windows=False)
                while not queries.restarts()["planner"]:
                    queries.check()
                    time.sleep(0.05)
        finally:
            queries.stop()
    for name in ("reader", "planner"):
        texts = [record.getMessage() for record in caplog.records if f"query {name} " in record.getMessage()]
        assert texts, name
        assert all(": Unreachable: " in text and "[flyball:" not in text for text in texts), texts


def test_a_log_that_does_not_exist_is_permanent(spark: SparkSession, tmp_path: Path) -> None:
    config = PipelineConfig.model_validate({"columns": "event_time double", "event_time": "event_time"})
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    publish(url, "events")
    queries = Queries(spark, url, config, tmp_path)
    absent = queries.stream({"log": "absent", "format": "raw"})
    queries.start("planner", absent, lambda _rows, _batch: None, close_windows=False)

    def check_until_it_fails() -> None:
        while True:
            queries.check()
            time.sleep(0.05)

    with pytest.raises(FailedForGood, match="absent"):
        check_until_it_fails()


def test_causes_decide_and_other_failures_pass_as_they_are() -> None:
    def sink_failure(cause: Exception) -> SinkFailed:
        error = SinkFailed("the log did not store all rows")
        error.__cause__ = cause
        return error

    assert kind_of(sink_failure(Unconfirmed("late"))) == FailureKind.UNCONFIRMED
    assert kind_of(sink_failure(ValueError(MISLEADING))) == FailureKind.PERMANENT
    with pytest.raises(CodedFailure, match=r"^\[flyball:unconfirmed\] SinkFailed: the log"), coded_failures():
        raise sink_failure(Unconfirmed("late"))
    with pytest.raises(ValueError, match="wrong"), coded_failures():
        raise ValueError("wrong")
    with pytest.raises(CodedFailure), coded_failures():
        raise Unreachable("nobody answers")
