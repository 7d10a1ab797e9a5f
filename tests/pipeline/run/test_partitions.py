"""Logs created beforehand with several partitions: refused where order is needed, else read as a whole."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flyball import Pipeline, PipelineConfig
from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.errors import InvalidValue
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.source.spool import Spooler
from flyball.pipeline.tier2.alert_tail import AlertTail
from flyball.servers.rabbitmq import RabbitMqNode

RULE = {"name": "busy", "column": "load", "above": 2.0, "hold_off_s": 5.0}


def config(name: str, **more: Any) -> PipelineConfig:
    given = {"name": name, "columns": "load double, event_time double", "event_time": "event_time"}
    return PipelineConfig.model_validate({**given, "rules": [RULE], **more})


def declare(url: str, log: str, partitions: int) -> None:
    async def work() -> None:
        async with await connect(url) as broker:
            await broker.declare(log, "log", partitions=partitions)

    asyncio.run(work())


def check_refused(url: str, folder: Path, log: str, settings: PipelineConfig) -> None:
    """Before Spark starts: there is no session to start one with."""
    declare(url, log, 3)
    pipeline = Pipeline(url, settings, folder)
    with pytest.raises(InvalidValue, match=f"the log '{log}' has 3 partitions and must have 1"), pipeline:
        pass


@pytest.mark.parametrize("runner", ["inline", "process"])
@pytest.mark.parametrize("suffix", ["results", "results.lane-1", "results.lanes", "gate-busy"])
def test_an_embedded_log_with_several_partitions_is_refused(tmp_path: Path, runner: str, suffix: str) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    check_refused(url, tmp_path, f"p.{suffix}", config("p", runner=runner, lanes={"count": 2}))


def test_a_kafka_topic_with_several_partitions_is_refused(tmp_path: Path, kafka_url: str) -> None:
    name = f"p-{uuid4().hex[:8]}"
    check_refused(kafka_url, tmp_path, f"{name}.results", config(name))


def test_a_rabbitmq_stream_with_several_partitions_is_refused(tmp_path: Path, rabbitmq: RabbitMqNode) -> None:
    name = f"p-{uuid4().hex[:8]}"
    check_refused(rabbitmq.stream_url, tmp_path, f"{name}.results.lane-0", config(name))


def test_alerts_of_all_partitions_are_handed_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    declare(url, "p.alerts", 3)
    found: list[int] = []
    tail = AlertTail(url, config("p"), lambda alert: found.append(alert["number"]))
    tail.start()
    try:

        async def send() -> None:
            async with await connect(url) as broker:
                sender = await broker.sender("p.alerts")
                bodies = [json.dumps({"rule": "busy", "number": number}).encode() for number in range(30)]
                messages = [Message(body, key=b"%d" % number) for number, body in enumerate(bodies)]
                assert all(result.ok for result in await sender.send_batch(messages))

        asyncio.run(send())
        tail.drain()
    finally:
        tail.stop()
    assert sorted(found) == list(range(30))


def test_the_pipeline_takes_an_input_log_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    declare(url, "events", 3)
    sinks = LogSinks(url)
    sinks.open()
    try:
        sinks.declare("events")
    finally:
        sinks.close()
    with open_log_reader(url, "events") as reader:
        assert reader.partitions() == 3


def test_a_spooler_knows_what_any_partition_of_its_log_has(tmp_path: Path) -> None:
    """Messages that are in the log and in the queue: the spooler was killed before it acknowledged them."""
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    messages = [Message(b"{}", id=f"m-{number}", key=b"%d" % number) for number in range(30)]

    async def scenario() -> Spooler:
        async with await connect(url) as broker:
            await broker.declare("events", "log", partitions=3)
            await broker.declare("queue")
            for channel in ("events", "queue"):
                sender = await broker.sender(channel)
                assert all(result.ok for result in await sender.send_batch(messages))
            spooler, stop = Spooler(url, "queue", url, "events"), asyncio.Event()
            running = asyncio.create_task(spooler.run(stop))
            while spooler.moved + spooler.dropped < len(messages) and not running.done():
                await asyncio.sleep(0.02)
            stop.set()
            await running
            return spooler

    spooler = asyncio.run(scenario())
    assert (spooler.moved, spooler.dropped) == (0, len(messages))
