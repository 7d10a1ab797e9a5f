"""`df.writeStream.format("flyball")` and `df.write.format("flyball")`: rows as messages of a broker's channel.

    query = (
        alerts.selectExpr("host AS key", "to_json(struct(*)) AS value")
        .writeStream.format("flyball")
        .option("url", "rabbitmq-stream://localhost")
        .option("channel", "alerts")
        .option("checkpointLocation", "/data/alerts-checkpoint")
        .start()
    )

A row has a `value`, and may have `key`, `headers`, `id`, `timestamp` and, instead of the option, `channel`. Tasks
of Spark send the rows themselves; nothing passes through the driver. The producer of a log's sequence numbers is
the query and the partition of the task, so a repeated batch adds nothing to a log that drops repeats. Messages of
queues keep their ids when they are sent again.

Spark builds these objects for every batch, in the driver, and pickles them for the tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from flyball.brokers import BrokerUrl, connect
from flyball.brokers.sqlite.schema import path_of
from flyball.errors import InvalidValue
from flyball.pipeline.policy.appending import WriteTask
from flyball.pipeline.run.failure_codes import coded_failures
from flyball.pipeline.writer.options import SinkOptions, check_columns, check_not_overwriting
from flyball.pipeline.writer.task_writer import Counts, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("flyball.pipeline")

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Under these names Spark tells tasks which query and batch they belong to."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote."""

    counts: Counts


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        check_not_overwriting(overwrite, "use outputMode append or update")
        self._options = SinkOptions.parse(options)
        if self._options.write_id:
            raise InvalidValue(
                "option write_id of the sink flyball is for batch jobs: a query is known by its checkpoint"
            )
        check_columns(schema, self._options)
        _prepare(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise InvalidValue(
                f"the sink flyball needs Spark's local properties {_QUERY} and {_BATCH} in its tasks"
            )
        task = WriteTask(query, context.partitionId(), int(batch))
        with coded_failures():
            return Written(write_rows(self._options, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _report_refused(messages, f"batch {batchId}", self._options)


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        check_not_overwriting(overwrite, "use mode('append')")
        self._options = SinkOptions.parse(options)
        check_columns(schema, self._options)
        _prepare(self._options)
        self._write_id = self._options.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = WriteTask(self._write_id, _context().partitionId(), batch=0)
        with coded_failures():
            return Written(write_rows(self._options, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report_refused(messages, f"job {self._write_id}", self._options)


def _report_refused(messages: list[WriterCommitMessage | None], what: str, options: SinkOptions) -> None:
    """Rows are stored when their task ends, so there is nothing else to commit, and nothing to abort."""
    refused = sum(message.counts.refused for message in messages if isinstance(message, Written))
    if refused:
        log.warning("%d rows of %s are dead letters in %r", refused, what, options.dead_letters)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a task of Spark"
    return context


def _prepare(options: SinkOptions) -> None:
    """Make the file of an embedded broker: tasks do not, for on another host it would be another file."""
    url = BrokerUrl.parse(options.url)
    if url.scheme == "sqlite" and options.declare and not path_of(url).exists():
        asyncio.run(_create(options.url))


async def _create(url: str) -> None:
    async with await connect(url):
        pass
