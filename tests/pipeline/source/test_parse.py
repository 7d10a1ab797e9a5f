"""A body is judged alike whatever its neighbours are, and nothing a publisher sends can break the parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flyball.pipeline.logs.marks import END_OF_INPUT, mark
from flyball.pipeline.source.parse import JsonParser
from flyball.pipeline.sql.columns import Columns

COLUMNS = Columns.parse("id bigint, ip string, load double null, busy boolean null, event_time double")
PARSER = JsonParser(COLUMNS, "event_time")
GOOD = b'{"id": 7, "ip": "10.0.0.1", "load": 0.5, "event_time": 12.5}'


def parse(*bodies: bytes) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = PARSER.parse(0, 100, bodies, None).to_pylist()
    return rows


def verdicts(*bodies: bytes) -> list[object]:
    return [row["_kind"] for row in parse(*bodies)]


def test_events_get_their_columns_and_their_place() -> None:
    first, second = parse(GOOD, b'{"ip": "b", "id": 8, "event_time": 3, "extra": [1, {"x": 2}]}')
    assert first["id"] == 7
    assert first["load"] == 0.5
    assert (first["_offset"], second["_offset"]) == (100, 101)
    assert second["load"] is None
    assert second["event_time"] == 3.0


def test_offsets_with_holes_are_kept() -> None:
    rows = PARSER.parse(3, 5, [GOOD, GOOD], [5, 9]).to_pylist()
    assert [(row["_partition"], row["_offset"]) for row in rows] == [(3, 5), (3, 9)]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (GOOD[:-5], "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"", "not JSON"),
        (b"[1]", "not a JSON object but list"),
        (b"null", "not a JSON object but NoneType"),
        (b'{"id": 7, "event_time": 1}', "ip is missing"),
        (b'{"id": "7", "ip": "a", "event_time": 1}', "id should be bigint, not '7'"),
        (b'{"id": 7.5, "ip": "a", "event_time": 1}', "id should be bigint, not '7.5'"),
        (b'{"id": 7, "ip": "a", "event_time": true}', "event_time should be double, not 'True'"),
        (b'{"id": 7, "ip": "a", "event_time": NaN}', "not JSON"),
        (b'{"id": 7, "ip": "a", "event_time": 1, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}", "not JSON"),
    ],
)
def test_a_malformed_body_leaves_as_a_row_with_the_reason(body: bytes, reason: str) -> None:
    before, bad, after = parse(GOOD, body, GOOD)
    assert bad["_kind"] == "malformed"
    assert str(bad["_error"]).startswith(reason)
    assert bad["_body"] == body
    assert [before["_kind"], after["_kind"]] == ["event", "event"]


def test_a_mark_carries_its_time_in_the_event_time_column() -> None:
    rows = parse(GOOD, mark(99.5), END_OF_INPUT)
    assert [row["_kind"] for row in rows] == ["event", "mark", "mark"]
    assert [row["event_time"] for row in rows[1:]] == [99.5, float("inf")]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["NaN", "Infinity"])
)
fields = st.dictionaries(st.sampled_from(["id", "ip", "load", "busy", "event_time", "other"]), scalars)
near_events = (
    fields.map(lambda value: {"id": 1, "ip": "a", "event_time": 2.0, **value}).map(json.dumps).map(str.encode)
)
damaged = st.tuples(near_events, st.integers(0, 80), st.binary(max_size=3)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)


@given(st.lists(st.one_of(near_events, damaged, st.binary(max_size=20)), min_size=1, max_size=6))
@example([b"null"])
@example([b"{}\n{}"])
@example([GOOD + b" " + GOOD])
def test_a_verdict_does_not_depend_on_the_neighbours(bodies: list[bytes]) -> None:
    alone = [parse(body)[0] for body in bodies]
    # A malformed neighbour forces the way that goes line by line.
    slow = parse(*bodies, b"{")[:-1]
    for one, other in zip(alone, slow, strict=True):
        assert {**one, "_offset": 0} == {**other, "_offset": 0}
