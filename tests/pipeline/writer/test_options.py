"""Options and columns of the sink are checked before a row is read; errors name key, value and remedy."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import StructType

from flyball.errors import InvalidValue
from flyball.pipeline.source.batch_reader import LogBatchReader
from flyball.pipeline.writer.options import SinkOptions, check_columns
from flyball.pipeline.writer.sink import BatchSink, StreamSink

OPTIONS = {"url": "amqp://localhost/", "channel": "alerts"}
VALUE = StructType().add("value", "string")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": ""}, "option url of the sink flyball must be the broker's URL, such as amqp://localhost/"),
        ({"url": "ftp://x"}, "unknown scheme ftp:// in ftp://x: use one of"),
        ({"url": "memory://"}, "that Spark's processes can reach, got memory://: use sqlite:///"),
        ({"channel": "a b"}, "invalid channel name 'a b'"),
        ({"chanel": "x"}, "no option 'chanel'; it has channel, dead_letters, declare"),
        ({"path": "out"}, "writes to a channel, not to the path 'out': set option channel"),
        ({"declare": "topic"}, "option declare of the sink flyball must be queue or log, got 'topic'"),
        (
            {"declare": "log", "partitions": "0"},
            "option partitions of the sink flyball must be an integer >= 1, got '0'",
        ),
        ({"partitions": "4"}, "is for logs that it declares, got '4': add declare = log"),
        ({"exactlyOnce": "yes"}, "option exactly_once of the sink flyball must be true or false, got 'yes'"),
        ({"on_refused": "drop"}, "option on_refused of the sink flyball must be fail or deadletter, got 'drop'"),
        ({"deadLetters": "bad"}, "nothing goes there: add on_refused = deadletter"),
        ({"channel": "", "onRefused": "deadletter"}, "needs the option dead_letters"),
        ({"outage_s": "-1"}, "option outage_s of the sink flyball must be a number of seconds >= 0, got '-1'"),
        ({"write_id": "a b"}, "option write_id of the sink flyball must be 1 to 100 letters"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(message)):
        SinkOptions.parse({**OPTIONS, **change})


@pytest.mark.parametrize("style", ["on_refused", "onRefused", "onrefused"])
def test_options_may_be_written_as_spark_does(style: str) -> None:
    spark = {"queryName": "q", "checkpointLocation": "c"}
    options = SinkOptions.parse({**OPTIONS, **spark, style: "deadletter"})
    assert options.dead_letters == "alerts.dead-letter"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": "string"}, "needs a column 'value' of type binary or string"),
        ({"value": "integer"}, "column value of the sink flyball must be binary or string, got int: cast it"),
        (
            {"value": "string", "load": "double"},
            "no column 'load'; it has value, key, headers, id, timestamp, channel: ",
        ),
        ({"value": "string", "partition": "integer"}, "no column 'partition'"),
        (
            {"value": "string", "headers": "string"},
            "column headers of the sink flyball must be map<string,string> or",
        ),
        ({"value": "string", "channel": "string"}, "both an option channel = 'alerts' and a column 'channel'"),
        (
            {"value": "string", "timestamp": "double"},
            "column timestamp of the sink flyball must be timestamp, got double",
        ),
    ],
)
def test_rows_that_are_no_messages_are_refused(columns: dict[str, str], message: str) -> None:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(InvalidValue, match=re.escape(message)):
        check_columns(schema, SinkOptions.parse(OPTIONS))


def test_a_channel_is_needed() -> None:
    with pytest.raises(InvalidValue, match="needs the option 'channel'"):
        check_columns(VALUE, SinkOptions.parse({"url": "amqp://localhost/"}))


def test_a_channel_cannot_be_overwritten() -> None:
    with pytest.raises(InvalidValue, match=r"cannot overwrite .*: use outputMode append or update"):
        StreamSink(OPTIONS, VALUE, overwrite=True)
    with pytest.raises(InvalidValue, match=r"cannot overwrite .*: use mode\('append'\)"):
        BatchSink(OPTIONS, VALUE, overwrite=True)
    with pytest.raises(InvalidValue, match="write_id of the sink flyball is for batch jobs"):
        StreamSink({**OPTIONS, "write_id": "x"}, VALUE, overwrite=False)


LOG = {"url": "sqlite:///x.db", "log": "events", "format": "raw"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_rows": "5"}, "option max_rows is for spark.readStream"),
        (
            {"startingOffsets": "latest"},
            "option startingOffsets of the source flyball must be earliest or offsets",
        ),
        ({"endingOffsets": '{"0": -1}'}, "option endingOffsets of the source flyball must be latest or offsets"),
        ({"ending_offsets": "[5]"}, "got '[5]'"),
    ],
)
def test_a_wrong_option_of_the_batch_reader_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=re.escape(message)):
        LogBatchReader({**LOG, **change})
