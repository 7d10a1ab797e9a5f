"""Every kind of rule against plain Python, on random streams: late, doubled, malformed, most of one host."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyspark.sql import SparkSession

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import EVENT, Columns
from flyball.pipeline.tier2 import rules
from flyball.pipeline.tier2.rules.gate import GateState
from tests.pipeline.batches import COLUMNS, START_S, Event, mark, random_events, rows, run_rule

RULE: TypeAdapter[Any] = TypeAdapter(rules.AnyRule)
WATERMARK_S = 5.0


def rule(**keys: Any) -> Any:
    return RULE.validate_python({"name": "r", **keys})


def stream(seed: int, *, reach_s: float, count: int = 600, span_s: float = 120.0) -> list[list[Event]]:
    """Micro-batches with events up to 4 s out of order, hopelessly late ones, and a mark that ends the input."""
    events = random_events(seed, count, span_s=span_s, disorder_s=4.0)
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(events)), 4))
    batches, place = [], 0
    for first, stop in zip([0, *cuts], [*cuts, len(events)], strict=True):
        batch = rows(events[first:stop], place, seed)
        place += len(batch)
        batches.append(batch)
    # Late beyond doubt: two batches on, and long before anything that is still open.
    hopeless = [{**row, "event_time": START_S - 1000.0, "load": 1e6, "kind": "failed"} for row in batches[0][:3]]
    batches[4] = [*batches[4], *hopeless]
    latest = max(event["event_time"] for event in events)
    return [*batches, [mark(latest + WATERMARK_S + reach_s)]]


def in_time(batches: Iterable[Sequence[Event]]) -> list[Event]:
    events = [row for batch in batches for row in batch if row["_kind"] == EVENT]
    return sorted(
        (event for event in events if event["event_time"] >= START_S - 100),
        key=lambda event: (event["event_time"], event["_partition"], event["_offset"]),
    )


def windows_of(time_s: float, length_s: float, every_s: float) -> list[float]:
    last = math.floor(time_s / every_s) * every_s
    starts = [last - k * every_s for k in range(math.ceil(length_s / every_s))]
    return [start for start in starts if start <= time_s < start + length_s]


def grouped(
    events: Iterable[Event], names: Sequence[str], length_s: float, every_s: float
) -> dict[Any, list[Event]]:
    found: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        for start in windows_of(event["event_time"], length_s, every_s):
            found[start, tuple(event[name] for name in names)].append(event)
    return found


def key_fields(messages: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    picked = [tuple(message.get(name) for name in ("window_start", "window_end", *names)) for message in messages]
    return sorted(picked, key=str)


@pytest.fixture
def seed() -> int:
    seed = random.randrange(10**6)
    print("seed", seed)  # noqa: T201 (shown when a test fails)
    return seed


@pytest.mark.parametrize(
    ("aggregate", "group_by", "every_s", "bound"),
    [
        ("max", (), None, {"above": 3.5}),
        ("avg", ("host", "kind"), 2.5, {"below": 1.2}),
        ("count", ("host",), None, {"above": 20}),
    ],
)
def test_threshold(
    spark: SparkSession, tmp_path: Path, seed: int, aggregate: str, group_by: Any, every_s: Any, bound: Any
) -> None:
    chosen = rule(
        where="kind <> 'login'", aggregate=aggregate, column="load", group_by=group_by, every_s=every_s, **bound
    )
    batches = stream(seed, reach_s=chosen.reach_s)
    messages = run_rule(spark, tmp_path / "in", chosen, batches, WATERMARK_S)
    compute: Any = {"max": max, "avg": lambda loads: sum(loads) / len(loads), "count": len}[aggregate]
    expected = []
    events = [event for event in in_time(batches) if event["kind"] != "login"]
    for (start, group), members in grouped(events, group_by, 10.0, every_s or 10.0).items():
        loads = [event["load"] for event in members if event["load"] is not None]
        if not loads and aggregate != "count":
            continue
        value = compute(loads)
        if value > bound.get("above", math.inf) or value < bound.get("below", -math.inf):
            expected.append({"window_start": start, "window_end": start + 10, "value": value, "group": group})
    assert expected
    got = [{**message, "group": tuple(message[name] for name in group_by)} for message in messages]
    assert key_fields(got, "group") == key_fields(expected, "group")
    values = {(one["window_start"], one["group"]): one["value"] for one in expected}
    assert {(one["window_start"], one["group"]): one["value"] for one in got} == pytest.approx(values)
    assert [one["window_end"] for one in got] == sorted(one["window_end"] for one in got)
    assert all(one["event_time"] == one["window_end"] for one in got)


def test_rate_of_change_is_the_slope_of_the_best_line(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chosen = rule(kind="rate", column="load", group_by=["host"], window_s=8, every_s=4, above=0.3)
    batches = stream(seed, reach_s=chosen.reach_s)
    messages = run_rule(spark, tmp_path / "in", chosen, batches, WATERMARK_S)
    expected = []
    for (start, group), members in grouped(in_time(batches), ["host"], 8.0, 4.0).items():
        points = [(event["event_time"] - start, event["load"]) for event in members if event["load"] is not None]
        slope = _slope(points)
        if slope is not None and slope > 0.3:
            expected.append({"window_start": start, "window_end": start + 8, "host": group[0], "value": slope})
    assert expected
    assert key_fields(messages, "host") == key_fields(expected, "host")
    by_place = {(one["window_start"], one["host"]): one["value"] for one in expected}
    assert {(one["window_start"], one["host"]): one["value"] for one in messages} == pytest.approx(
        by_place, rel=1e-6
    )


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    if len({time for time, _ in points}) < 2:
        return None
    mean_t = sum(time for time, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((time - mean_t) ** 2 for time, _ in points)
    return sum((time - mean_t) * (y - mean_y) for time, y in points) / spread


@pytest.mark.parametrize(("group_by", "for_s"), [((), 1.5), (("host",), 3.0)])
def test_absence(spark: SparkSession, tmp_path: Path, seed: int, group_by: Any, for_s: float) -> None:
    chosen = rule(kind="absence", where="kind = 'dns'", group_by=group_by, for_s=for_s)
    # Other rules need the mark further ahead; that must not look like silence.
    batches = stream(seed, reach_s=40.0)
    messages = run_rule(spark, tmp_path / "in", chosen, batches, WATERMARK_S, marks_ahead_s=40.0)
    times: dict[Any, list[float]] = defaultdict(list)
    events = in_time(batches)
    for event in events:
        if event["kind"] == "dns":
            times[tuple(event[name] for name in group_by)].append(event["event_time"])
    now_s = max(event["event_time"] for event in events)
    expected = [
        (before, group)
        for group, seen in times.items()
        for before, after in zip(seen, [*seen[1:], now_s], strict=True)
        if after - before > for_s
    ]
    assert expected
    got = [(one["window_start"], tuple(one[name] for name in group_by)) for one in messages]
    assert sorted(got, key=str) == sorted(expected, key=str)
    assert all(one["window_end"] == pytest.approx(one["window_start"] + for_s, abs=1e-5) for one in messages)


@pytest.mark.parametrize(
    "steps",
    [
        ("kind = 'failed'", "kind = 'login'"),
        ("kind = 'failed'", "kind = 'failed' AND load > 1", "kind = 'login'"),
        ("kind = 'failed'", "kind = 'failed'"),
    ],
)
def test_sequence(spark: SparkSession, tmp_path: Path, seed: int, steps: tuple[str, ...]) -> None:
    chosen = rule(kind="sequence", steps=steps, group_by=["host"], within_s=2.5)
    batches = stream(seed, reach_s=chosen.reach_s)
    messages = run_rule(spark, tmp_path / "in", chosen, batches, WATERMARK_S)
    by_host: dict[Any, list[Event]] = defaultdict(list)
    for event in in_time(batches):
        by_host[event["host"]].append(event)
    expected = []
    for host, events in by_host.items():
        for place in range(len(events)):
            start_s = _latest_start(events, place, steps)
            if start_s is not None and _micros(events[place]) - start_s <= 2_500_000:
                expected.append((start_s, _micros(events[place]), host))
    assert expected
    got = [(round(one["window_start"] * 1e6), round(one["window_end"] * 1e6), one["host"]) for one in messages]
    assert sorted(got, key=str) == sorted(expected, key=str)


def _micros(event: Event) -> int:
    micros: int = round(event["event_time"] * 1e6)
    return micros


def _latest_start(events: Sequence[Event], last: int, steps: Sequence[str]) -> int | None:
    """Search backwards for the shortest chain that ends here: greedy from the end, it starts latest."""
    if not _fits(events[last], steps[-1]):
        return None
    place = last
    for step in reversed(steps[:-1]):
        place = next((before for before in range(place - 1, -1, -1) if _fits(events[before], step)), -1)
        if place < 0:
            return None
    return _micros(events[place])


def _fits(event: Event, step: str) -> bool:
    kind = step.split("'")[1]
    return event["kind"] == kind and ("load > 1" not in step or (event["load"] is not None and event["load"] > 1))


def test_summary_gives_an_event_for_every_window(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chosen = rule(
        kind="summary",
        to="cities",
        group_by=["host"],
        window_s=20,
        aggregates={"load_max": "max(load)", "events": "count(*)", "ids": "sum(id)"},
    )
    batches = stream(seed, reach_s=chosen.reach_s)
    messages = run_rule(spark, tmp_path / "in", chosen, batches, WATERMARK_S)
    expected = [
        (
            start,
            group[0],
            max((event["load"] for event in members if event["load"] is not None), default=None),
            len(members),
            float(sum(event["id"] for event in members)),
        )
        for (start, group), members in grouped(in_time(batches), ["host"], 20.0, 20.0).items()
    ]
    got = [tuple(one[name] for name in ("window_start", "host", "load_max", "events", "ids")) for one in messages]
    assert sorted(got, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(("dedup", "hold_off_s"), [(True, 0.0), (False, 35.0), (True, 25.0)])
def test_dedup_and_hold_off(
    spark: SparkSession, tmp_path: Path, seed: int, dedup: bool, hold_off_s: float
) -> None:
    keys = {"column": "load", "group_by": ["host"], "window_s": 10, "every_s": 5, "above": 3.0}
    batches = stream(seed, reach_s=10.0)
    every = run_rule(spark, tmp_path / "all", rule(**keys), batches, WATERMARK_S)
    some = run_rule(
        spark, tmp_path / "some", rule(**keys, dedup=dedup, hold_off_s=hold_off_s), batches, WATERMARK_S
    )
    expected = []
    for host in {one["host"] for one in every}:
        passed_s, until_s, held = -math.inf, -math.inf, 0
        for one in (one for one in every if one["host"] == host):
            same = dedup and one["window_start"] <= until_s
            until_s = one["window_end"]
            if same or one["window_end"] - passed_s < hold_off_s:
                held += 1
                continue
            expected.append((one["window_end"], host, held))
            passed_s, held = one["window_end"], 0
    assert 0 < len(expected) < len(every)
    got = [(one["window_end"], one["host"], one["held_off"]) for one in some]
    assert sorted(got, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"column": "lode", "above": 2}, "rules[r].column names the column 'lode', which is none of id"),
        (
            {"column": "ip", "above": 2},
            "rules[r].column names the column 'ip', which is string; the rule needs a number",
        ),
        (
            {"column": "load", "above": 2, "where": "lode > 1"},
            "rules[r].where: 'lode > 1': there is no column 'lode'",
        ),
        ({"column": "load", "above": 2, "group_by": ["x"]}, "rules[r].group_by names the column 'x'"),
        (
            {"column": "load", "above": 2, "group_by": ["event_time"]},
            "an alert has a field 'event_time' of its own",
        ),
        ({"column": "load", "above": 2, "group_by": ["ip", "ip"]}, "names a column twice"),
        ({"column": "load", "above": 2, "every_s": 20}, "every_s = 20 would leave gaps; at most window_s = 10"),
        ({"column": "load", "above": 2, "every_s": 0.001}, "into 10000 windows"),
        ({"kind": "rate", "column": "ip", "above": 2}, "which is string"),
        (
            {"kind": "sequence", "steps": ["kind = 'a'", "kin = 'b'"], "within_s": 1},
            "rules[r].steps[number 2]: 'kin = \\'b\\'': there is no column 'kin'; did you mean 'kind'?".replace(
                "'kin = \\'b\\''", "\"kin = 'b'\""
            ),
        ),
        (
            {"kind": "summary", "to": "c", "aggregates": {"m": "load"}},
            "rules[r].aggregates.m: 'load': is not an aggregate",
        ),
        ({"kind": "summary", "to": "c", "aggregates": {"value": "max(load)"}}, "'value' cannot name a field here"),
        ({"kind": "summary", "to": "c", "dedup": True, "aggregates": {"m": "max(load)"}}, "leave them out"),
    ],
)
def test_an_impossible_rule_is_refused(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        rules.check([rule(**keys)], COLUMNS)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"column": "load"}, "either above or below"),
        ({"column": "load", "above": 1, "window_s": 0}, "greater than or equal to 0.001"),
        ({"column": "load", "above": float("nan")}, "finite"),
        ({"kind": "absence"}, "for_s"),
        ({"kind": "sequence", "steps": ["true"], "within_s": 1}, "at least 2"),
        ({"kind": "weather"}, "weather"),
        ({"column": "load", "above": 1, "name": "a b"}, "pattern"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(keys: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        rule(**keys)


def test_a_rule_reads_only_the_columns_that_it_mentions() -> None:
    wide = Columns.parse("id bigint, Host string, load double, msg string, event_time double")
    one = rule(name="busy", where="lower(host) = 'a' AND load > 1", column="load", above=2, group_by=["Host"])
    assert one.reads(wide, "event_time").names == ("Host", "load", "event_time")


def test_a_rule_reads_columns_that_stand_at_the_beginning_of_a_line() -> None:
    one = rule(column="id", above=1, where="kind = 'dns' AND\nload > 2 OR\n\thost = 'h1'")
    assert one.reads(COLUMNS, "event_time").names == ("id", "host", "kind", "load", "event_time")
    steps = rule(kind="sequence", steps=["\nkind = 'failed'", "load > 1 AND\nip <> 'x'"], within_s=5.0)
    assert steps.reads(COLUMNS, "event_time").names == ("kind", "ip", "load", "event_time")


def finding(**changed: Any) -> dict[str, Any]:
    return {"window_start": START_S, "window_end": START_S + 10, "value": 3.0, "host": "h1", **changed}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_value_that_json_does_not_have_is_null_in_the_alert(value: float) -> None:
    """Two loads of 1.7e308 have no finite sum. Whoever reads the alerts must be able to."""
    one = rule(aggregate="sum", column="load", above=2, group_by=["host"])
    (alert,), _ = rules.messages(one, [finding(value=value)], 0, GateState())
    assert json.loads(json.dumps(alert, allow_nan=False))["value"] is None
    assert f"sum of load is {value:g}" in alert["text"]
    summary = rule(kind="summary", to="hosts", aggregates={"load_max": "max(load)"})
    (event,), _ = rules.messages(summary, [finding(value=None, load_max=value)], 0, GateState())
    assert json.loads(json.dumps(event, allow_nan=False))["load_max"] is None


def test_a_window_that_no_calendar_has_is_an_alert_all_the_same() -> None:
    late_s = 253_402_300_790.0  # the last seconds of the year 9999
    row = finding(window_start=late_s, window_end=late_s + 10)
    (alert,), _ = rules.messages(rule(column="load", above=2), [row], 0, GateState())
    assert alert["window_end"] == late_s + 10
    assert alert["text"].startswith("23:59:50–2.53402e+11 s")
