"""Options are checked before Spark starts; batches are ranges of offsets."""

from __future__ import annotations

import pytest

from flyball.errors import InvalidValue
from flyball.pipeline.source.datasource import FlyballSource, LaneShare, LogStreamReader
from flyball.pipeline.source.lane_options import LaneOptions

OPTIONS = {
    "url": "sqlite:///x.db",
    "log": "events",
    "columns": "id bigint, event_time double",
    "event_time": "event_time",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": ""}, "needs the option 'url'"),
        ({"columns": "id decimal"}, "unknown type 'decimal'"),
        ({"event_time": "when"}, "'when' is none of the columns id, event_time"),
        ({"max_rows": "many"}, "max_rows of the source flyball must be an integer >= 1, got 'many'"),
        (
            {"offset": "7"},
            "no option 'offset'; it has columns, event_time, fail_on_data_loss, format, interval_s, lanes, log,",
        ),
        ({"result_queue": "results"}, "no option 'result_queue'"),
        ({"_pipeline": "yes"}, "option _pipeline of the source flyball is written by pipelines, got 'yes'"),
        ({"_pipeline": '{"lane": 1}'}, "option _pipeline of the source flyball is written by pipelines"),
        ({"_pipeline": '{"result_queue": "results", "line": 1}'}, "written by pipelines"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValue, match=message.replace("(", r"\(")):
        LogStreamReader({**OPTIONS, **change})


def test_schema_is_what_was_declared_and_what_the_source_adds() -> None:
    assert FlyballSource(OPTIONS).schema().startswith("id bigint, event_time double, _kind string")


def test_lanes_share_the_reading_of_a_partition() -> None:
    ranges = LogStreamReader({**OPTIONS, "lanes": "3"}).partitions({"next": [5, 0]}, {"next": [9, 1]})
    parts = [part.share.ranges for part in ranges if isinstance(part, LaneShare)]
    assert parts == [((0, 5, 6),), ((0, 6, 7),), ((0, 7, 9),), ((1, 0, 1),)]


@pytest.mark.parametrize(
    "lanes", [None, LaneOptions(result_queue="results"), LaneOptions(result_queue="results", lane=2)]
)
def test_a_batch_that_ends_where_it_starts_has_nothing_to_read(lanes: LaneOptions | None) -> None:
    """Spark begins with one when there is no input yet."""
    begin = {"next": [0], "into": 0, "mark": -1, "taken": 0}
    private = {} if lanes is None else {"_pipeline": lanes.to_json()}
    assert LogStreamReader({**OPTIONS, **private}).partitions(begin, dict(begin)) == []


def test_what_a_pipeline_tells_its_source_arrives_unchanged() -> None:
    told = LaneOptions(
        result_queue="r", balance=False, gains=(-0.5, -0.1), played=(1.0, 2.0), sample=("id", "load")
    )
    assert LaneOptions.from_json(told.to_json()) == told


def test_a_batch_is_one_range_for_each_partition_that_has_something_new() -> None:
    ranges = LogStreamReader(OPTIONS).partitions({"next": [5, 7]}, {"next": [9, 7]})
    assert [part.share.ranges for part in ranges if isinstance(part, LaneShare)] == [((0, 5, 9),)]
