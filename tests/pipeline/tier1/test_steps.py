"""Every tier-1 step against plain Python on random events; what is no event passes untouched."""

from __future__ import annotations

import csv
import ipaddress
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from flyball.errors import InvalidValue
from flyball.pipeline.sql.columns import EVENT, Columns
from flyball.pipeline.tier1 import steps as tier1
from flyball.pipeline.tier1.steps.call import StepFailed
from tests.pipeline.batches import COLUMNS, Event, frame, mark, random_events, rows

STEPS: TypeAdapter[Any] = TypeAdapter(tuple[tier1.AnyStep, ...])


def steps(*data: dict[str, Any], folder: Path | None = None) -> Any:
    return STEPS.validate_python(list(data), context={"folder": folder or Path()})


def given(seed: int, count: int = 400) -> list[Event]:
    return [*rows(random_events(seed, count, disorder_s=3.0), seed=seed), mark(5.0)]


def run(
    spark: SparkSession, data: list[Event], *config: dict[str, Any], folder: Path | None = None
) -> list[Event]:
    chain = steps(*config, folder=folder)
    after = tier1.columns_after(chain, COLUMNS)
    found = frame(spark, data).transform(tier1.function(chain, COLUMNS, "event_time"))
    assert found.columns == [*after.names, "_kind", "_partition", "_offset", "_error", "_body"]
    assert found.schema.simpleString() == _simple(spark, after)
    table: list[Event] = found.toArrow().to_pylist()
    return table


def _simple(spark: SparkSession, columns: Columns) -> str:
    return spark.createDataFrame([], columns.spark_ddl).schema.simpleString()


def padded(row: Event, columns: Columns = COLUMNS) -> Event:
    names = [*columns.names, "_kind", "_partition", "_offset", "_error", "_body"]
    return {name: row.get(name) for name in names}


def expected(
    data: list[Event], change: Callable[[Event], Event | None], columns: Columns = COLUMNS
) -> list[Event]:
    """What is left when `change` is done to every event, in order."""
    changed = [change(dict(row)) if row["_kind"] == EVENT else row for row in data]
    return [padded(row, columns) for row in changed if row is not None]


@pytest.fixture(params=range(2))
def data() -> list[Event]:
    seed = random.randrange(10**6)
    print("seed", seed)  # noqa: T201 (shown when a test fails)
    return given(seed)


def test_filter(spark: SparkSession, data: list[Event]) -> None:
    found = run(
        spark, data, {"keep": "NOT (kind = 'performance' AND in_subnet(ip, '92.126.8.0/23')) AND load > 0"}
    )

    def keep(row: Event) -> Event | None:
        dropped = row["kind"] == "performance" and row["ip"].startswith(("92.126.8.", "92.126.9."))
        return row if not dropped and row["load"] is not None and row["load"] > 0 else None

    assert found == expected(data, keep)


def test_set_sees_the_values_before_the_step(spark: SparkSession, data: list[Event]) -> None:
    found = run(
        spark,
        data,
        {"set": {"kind": "upper(kind)", "label": "kind || '-' || host", "load": "coalesce(load, 0) * 2"}},
    )
    columns = Columns.parse(f"{COLUMNS.text}, label string null")

    def change(row: Event) -> Event:
        label = None if row["host"] is None else f"{row['kind']}-{row['host']}"
        return {**row, "kind": row["kind"].upper(), "label": label, "load": (row["load"] or 0.0) * 2}

    assert found == expected(data, change, columns)


def test_set_can_change_a_type(spark: SparkSession, data: list[Event]) -> None:
    columns = Columns.parse(COLUMNS.text.replace("load double null", "load string null"))
    found = run(spark, data, {"set": {"load": "if(load > 1, 'high', 'low')"}})
    change = lambda row: {**row, "load": "high" if (row["load"] or 0) > 1 else "low"}  # noqa: E731
    assert found == expected(data, change, columns)


def test_reject_gives_a_malformed_row_with_the_reason(spark: SparkSession, data: list[Event]) -> None:
    found = run(spark, data, {"reject": "load < 0", "reason": "negative load"})
    bad = [row for row in data if row["_kind"] == EVENT and row["load"] is not None and row["load"] < 0]
    assert bad
    rejected = [row for row in found if row["_error"] == "negative load"]
    assert [row["_offset"] for row in rejected] == [row["_offset"] for row in bad]
    for row, event in zip(rejected, bad, strict=True):
        assert row["_kind"] == "malformed"
        body = json.loads(row["_body"])
        assert body == {name: event[name] for name in COLUMNS.names if event[name] is not None}
    others = [row for row in found if row["_error"] != "negative load"]
    keep = lambda row: None if row["load"] is not None and row["load"] < 0 else row  # noqa: E731
    assert others == expected(data, keep)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("event_time - load", "event_time is null: without a time, an event has no place in the order"),
        ("event_time * 1000", "which is no time in seconds of the years 1 to 9999"),
        ("-1e300 * event_time", "which is no time in seconds of the years 1 to 9999"),
    ],
)
def test_an_event_without_a_plausible_time_is_a_dead_letter(
    spark: SparkSession, data: list[Event], value: str, complaint: str
) -> None:
    """`load` is null now and then, and so is what is computed from it."""
    found = run(spark, data, {"set": {"event_time": f"if(load IS NULL, {value}, event_time)"}})
    bad = [row for row in data if row["_kind"] == EVENT and row["load"] is None]
    assert bad
    rejected = [row for row in found if complaint in (row["_error"] or "")]
    assert [row["_offset"] for row in rejected] == [row["_offset"] for row in bad]
    assert [json.loads(row["_body"])["id"] for row in rejected] == [row["id"] for row in bad]
    others = [row for row in found if row not in rejected]
    assert others == expected(data, lambda row: None if row["load"] is None else row)


def test_project(spark: SparkSession, data: list[Event]) -> None:
    found = run(spark, data, {"columns": ["event_time", "load"]})
    assert found == expected(data, lambda row: row, Columns.parse("load double null, event_time double"))


def test_sample_is_the_same_whenever_it_is_taken(spark: SparkSession) -> None:
    data = given(3, 3000)
    found = run(spark, data, {"sample": 0.3, "seed": 9})
    backwards = run(spark, data[::-1], {"sample": 0.3, "seed": 9})
    assert backwards[::-1] == found
    # The hash is computed by the reference below, so the very events are known, not only how many.
    keep = lambda row: row if _hash(9, row["_partition"], row["_offset"]) % 10**6 < 300_000 else None  # noqa: E731
    assert found == expected(data, keep)
    kept = sum(row["_kind"] == EVENT for row in found)
    assert 0.25 < kept / sum(row["_kind"] == EVENT for row in data) < 0.35


def test_sample_by_a_column_keeps_or_drops_a_value_as_a_whole(spark: SparkSession) -> None:
    data = given(4, 3000)
    found = run(spark, data, {"sample": 0.5, "by": "ip"})
    kept = {row["ip"] for row in found if row["_kind"] == EVENT}
    assert found == expected(data, lambda row: row if row["ip"] in kept else None)
    assert 0.3 < len(kept) / len({row["ip"] for row in data if "ip" in row}) < 0.7


def _hash(seed: int, partition: int, offset: int) -> int:
    """xxHash64 of a long, an int and a long, each seeding the next, as Spark computes it; 42 comes first."""
    chained = _long(seed, 42)
    chained = _int(partition, chained)
    signed = _long(offset, chained)
    return signed - 2**64 if signed >= 2**63 else signed


_P = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_M = 2**64 - 1


def _rotl(x: int, by: int) -> int:
    return ((x << by) | (x >> (64 - by))) & _M


def _mixed(h: int) -> int:
    h = ((h ^ (h >> 33)) * _P[1]) & _M
    h = ((h ^ (h >> 29)) * _P[2]) & _M
    return h ^ (h >> 32)


def _long(x: int, seed: int) -> int:
    h = (seed + _P[4] + 8) & _M
    h ^= (_rotl((x * _P[1]) & _M, 31) * _P[0]) & _M
    return _mixed((_rotl(h, 27) * _P[0] + _P[3]) & _M)


def _int(x: int, seed: int) -> int:
    h = (seed + _P[4] + 4) & _M
    h ^= ((x & 0xFFFFFFFF) * _P[0]) & _M
    return _mixed((_rotl(h, 23) * _P[1] + _P[2]) & _M)


def test_lookup_by_key(spark: SparkSession, data: list[Event], tmp_path: Path) -> None:
    table = {"h0": ("web", 3), "h1": ("db", None), "h9": ("spare", 1)}
    lines: list[list[Any]] = [
        ["tier", "name", "rack"],
        *([tier, name, rack] for name, (tier, rack) in table.items()),
    ]
    with (tmp_path / "hosts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    config = {"lookup": "hosts.csv", "on": "host", "key": "name", "add": "tier string, rack bigint null"}
    found = run(spark, data, config, folder=tmp_path)
    columns = Columns.parse(f"{COLUMNS.text}, tier string null, rack bigint null")

    def change(row: Event) -> Event:
        tier, rack = table.get(row["host"], (None, None))
        return {**row, "tier": tier, "rack": rack}

    assert found == expected(data, change, columns)


def test_lookup_by_subnet_takes_the_longest_prefix(spark: SparkSession, data: list[Event], tmp_path: Path) -> None:
    table = {
        "0.0.0.0/1": "low half",
        "92.126.0.0/16": "campus",
        "92.126.10.0/24": "test lab",
        "92.126.10.128/25": "rack 7",
        "92.126.10.200/32": "printer",
        "10.126.8.0/23": "city",
    }
    (tmp_path / "nets.csv").write_text("net,site\n" + "".join(f"{net},{site}\n" for net, site in table.items()))
    config = {"lookup": "nets.csv", "on": "ip", "subnet": "net", "add": "site string"}
    data[0]["ip"] = "92.126.10.200"
    data[1 if data[1]["_kind"] == EVENT else 2]["ip"] = "not an address"
    found = run(spark, data, config, folder=tmp_path)
    nets = sorted((ipaddress.ip_network(net) for net in table), key=lambda net: -net.prefixlen)

    def change(row: Event) -> Event:
        try:
            address = ipaddress.ip_address(row["ip"])
        except ValueError:
            return {**row, "site": None}
        return {**row, "site": next((table[str(net)] for net in nets if address in net), None)}

    assert found == expected(data, change, Columns.parse(f"{COLUMNS.text}, site string null"))
    assert len({row["site"] for row in found}) > 4


def double_load(frame: DataFrame) -> DataFrame:
    return frame.withColumn("load", F.col("load") * 2).withColumn("score", F.col("load") + 1)


def forgets_its_place(frame: DataFrame) -> DataFrame:
    return frame.drop("_offset")


def test_call_runs_a_function_of_the_user(spark: SparkSession, data: list[Event]) -> None:
    columns = Columns.parse(f"{COLUMNS.text}, score double null")
    found = run(spark, data, {"call": f"{__name__}:double_load", "gives": columns.text})

    def change(row: Event) -> Event:
        twice = None if row["load"] is None else row["load"] * 2
        return {**row, "load": twice, "score": None if twice is None else twice + 1}

    assert found == expected(data, change, columns)


def drops_what_is_no_event(rows: DataFrame) -> DataFrame:
    return rows.where("load > 1")


def asks_for_nothing_known(rows: DataFrame) -> DataFrame:
    return rows.where("lode > 1")


def gives_nothing(_rows: DataFrame) -> None:
    return None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("double_load", None),
        (
            "drops_what_is_no_event",
            "dropped or multiplied a row whose _kind is 'end'; leave rows alone whose _kind",
        ),
        ("forgets_its_place", "returned rows without the column '_offset'; keep it"),
        ("asks_for_nothing_known", "cannot work on the events: .*lode"),
        ("gives_nothing", "returned NoneType; it must return a DataFrame"),
    ],
)
def test_a_function_that_would_lose_results_is_refused_before_any_event_is_read(
    spark: SparkSession, function: str, message: str | None
) -> None:
    chain = steps({"keep": "load > 0"}, {"call": f"{__name__}:{function}"})
    if message is None:
        tier1.rehearse(chain, COLUMNS, spark)
        return
    with pytest.raises(StepFailed, match=message) as refused:
        tier1.rehearse(chain, COLUMNS, spark)
    assert str(refused.value).startswith(f"tier1[number 2].call: {__name__}:{function} ")
    assert "\n" not in str(refused.value)


def test_call_says_what_a_function_lost(spark: SparkSession, data: list[Event]) -> None:
    with pytest.raises(StepFailed, match="forgets_its_place returned rows without the column '_offset'"):
        run(spark, data, {"call": f"{__name__}:forgets_its_place"})


def test_steps_in_a_chain_see_what_those_before_made(spark: SparkSession, data: list[Event]) -> None:
    found = run(
        spark,
        data,
        {"set": {"twice": "load * 2"}},
        {"keep": "twice > 3"},
        {"columns": ["id", "twice", "event_time"]},
    )
    columns = Columns.parse("id bigint, event_time double, twice double null")

    def change(row: Event) -> Event | None:
        twice = (row["load"] or 0.0) * 2
        return {**row, "twice": twice} if twice > 3 else None

    assert found == expected(data, change, columns)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            [{"keep": "lode > 1"}],
            "tier1[number 1].keep: 'lode > 1': there is no column 'lode'; did you mean 'load'?",
        ),
        (
            [{"keep": "true"}, {"set": {"x": "upper(load)"}}],
            "tier1[number 2].set.x: 'upper(load)': upper needs a text",
        ),
        ([{"set": {"x": "NULL"}}], "tier1[number 1].set.x: 'NULL' is always null; cast it to a type"),
        ([{"set": {"_kind": "'x'"}}], "'_kind' cannot name a column"),
        ([{"reject": "load"}], "tier1[number 1].reject: 'load' is double"),
        ([{"columns": ["id", "lode"]}], "tier1[number 1].columns names the column 'lode', which is none of id"),
        ([{"sample": 0.5, "by": "x"}], "tier1[number 1].by names the column 'x'"),
        (
            [{"columns": ["id"]}, {"keep": "load > 1"}],
            "tier1[number 2].keep: 'load > 1': there is no column 'load'",
        ),
        (
            [{"lookup": "absent.csv", "on": "ip", "key": "ip", "add": "x string"}],
            "tier1[number 1].lookup: the file 'absent.csv' cannot be read (No such file or directory)",
        ),
        (
            [{"lookup": "a.csv", "on": "x", "key": "ip", "add": "y string"}],
            "tier1[number 1].on names the column 'x'",
        ),
        ([{"lookup": "a.csv", "on": "id", "subnet": "n", "add": "y string"}], "an address is a string"),
        ([{"lookup": "a.csv", "on": "ip", "key": "k", "add": "load double"}], "a column 'load' already"),
    ],
)
def test_a_step_that_cannot_work_is_refused(config: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        tier1.columns_after(steps(*config), COLUMNS)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "a step of tier 1 has none of keep, set, reject, columns, sample, lookup, call"),
        ({"keep": "true", "sample": 0.5}, "has both keep and sample"),
        ({"sample": 0}, "greater than 0"),
        ({"call": "nonsense"}, "'nonsense' does not name a function; write module:function"),
        ({"call": "no_such_module:f"}, "'no_such_module:f' cannot be imported"),
        ({"call": "json:nothing"}, "the module json has no function 'nothing'"),
        ({"lookup": "a.csv", "on": "ip", "add": "y string"}, "either key or subnet"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        steps(config)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("name,x\nh0,1\n", "has no column 'tier'; it has name, x"),
        ("name,tier\nh0,web\nh0,db\n", "line 3: the key 'h0' is also in line 2"),
        ("name,tier\nh0\n", "line 2 has 1 values but the header has 2 columns"),
        ("name,tier\nh0,\n", "line 2, column 'tier': the value is missing"),
    ],
)
def test_a_lookup_table_that_cannot_be_used_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "hosts.csv").write_text(text)
    config = {"lookup": "hosts.csv", "on": "host", "key": "name", "add": "tier string"}
    with pytest.raises(InvalidValue) as refusal:
        tier1.columns_after(steps(config, folder=tmp_path), COLUMNS)
    assert complaint in str(refusal.value)


def test_values_of_a_lookup_table_are_checked_by_type(tmp_path: Path) -> None:
    (tmp_path / "hosts.csv").write_text("name,rack,net\nh0,seven,10.0.0.0/8\n")
    for add, complaint in [("rack bigint", "'seven' is not bigint"), ("rack double", "'seven' is not double")]:
        config = {"lookup": "hosts.csv", "on": "host", "key": "name", "add": add}
        with pytest.raises(InvalidValue, match=f"line 2, column 'rack': {complaint}"):
            tier1.columns_after(steps(config, folder=tmp_path), COLUMNS)
    config = {"lookup": "hosts.csv", "on": "ip", "subnet": "name", "add": "net string"}
    with pytest.raises(InvalidValue, match="line 2, column 'name': 'h0' is not an IPv4 subnet"):
        tier1.columns_after(steps(config, folder=tmp_path), COLUMNS)
