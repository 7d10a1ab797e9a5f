"""Expressions: what is refused and how, and that what reaches Spark means what the user wrote."""

from __future__ import annotations

import contextlib
import ipaddress
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from flyball.errors import InvalidValue
from flyball.pipeline.sql.expressions import Scope, aggregate, condition, value
from flyball.pipeline.sql.functions import FUNCTIONS
from flyball.pipeline.sql.subnets import in_subnet, network

SCOPE = Scope({"id": "bigint", "load": "double", "ip": "string", "busy": "boolean"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lode > 2", "no column 'lode'; did you mean 'load'?"),
        ("colour = 'red'", "there are: id bigint, load double, ip string, busy boolean"),
        ("load >", "is not SQL"),
        ("load > 2; DROP TABLE x", "not one expression"),
        ("load > 2 FROM events", "not a query"),
        ("load > 2, id", "not a query"),
        ("(SELECT 1) > 0", "cannot be used here"),
        ("id IN (SELECT 1)", "after IN comes a list of values"),
        ("EXISTS (SELECT 1)", "no function 'exists'"),
        ("java_method('java.lang.System', 'exit', 1)", "no function 'java_method'"),
        ("rand() < 0.5", "no function 'rand'"),
        ("current_timestamp() > 0", "no function 'current_timestamp'"),
        ("max(load) > 2", "looks at many events; only a rule can do that"),
        ("lowr(ip) = 'a'", "did you mean lower?"),
        ("load", "is double, not true or false"),
        ("ip > 5", "> mixes string (ip) with bigint (5)"),
        ("ip + 1 > 2", "+ needs a number, not string (ip)"),
        ("NOT load", "NOT needs a condition, not double (load)"),
        ("load AND busy", "AND needs a condition"),
        ("load LIKE '2%'", "LIKE needs a text, not double (load)"),
        ("ip LIKE 'C:\\\\dir\\\\'", "a backslash in a pattern stands before %, _ or another backslash"),
        ("id IN (1, 'two')", "IN mixes"),
        ("coalesce(load, 'none') > 1", "coalesce mixes"),
        ("round(load, 1, 2) > 1", "round got 3 values; write round(number [, number])"),
        ("in_subnet(ip, '92.126.10.0/33')", "is not an IPv4 subnet"),
        ("in_subnet(ip, '92.126.10.7/24')", "did you mean '92.126.10.0/24'?"),
        ("in_subnet(ip, '::1/64')", "is not an IPv4 subnet"),
        ("in_subnet(ip)", "write in_subnet(column, 'a.b.c.d/n')"),
        ("in_subnet(load, '10.0.0.0/8')", "in_subnet needs a text"),
        ("events.load > 2", "write its name alone"),
        ("load[0] > 2", "cannot be used here"),
        ("CAST(ip AS timestamp) IS NULL", "cast to string, bigint, double or boolean"),
        ("id = 99999999999999999999", "too large for a whole number"),
        ("load IS 5", "after IS comes NULL, TRUE or FALSE"),
        ("trim(BOTH 'x' FROM ip) = ''", "cannot be used here"),
        ("CASE load WHEN 1 THEN true END", "write CASE WHEN condition THEN value"),
        ("_kind = 'event'", "no column '_kind'"),
        ("", "is not"),
        ("(" * 3000 + "busy" + ")" * 3000, "is nested too deeply"),
        ("busy AND " * 3000 + "busy", "has 27004 characters; 10000 are the most"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        condition(text, SCOPE)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(st.text(alphabet="loadip()=<>'123 ANDORNOT+-*/.,;_`\"\\", max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidValue):
        condition(text, SCOPE)


# Each with a value for which Python says what SQL must say: row → expected.
ROWS: list[dict[str, Any]] = [
    {"id": 7, "load": 2.5, "ip": "92.126.10.7", "busy": True},
    {"id": -3, "load": -0.5, "ip": " Mixed ", "busy": False},
    {"id": 2**62, "load": 1e300, "ip": "it's \\ x", "busy": None},
    {"id": 0, "load": None, "ip": None, "busy": None},
]
CASES: dict[str, list[Any]] = {
    "load > 2 AND busy": [True, False, None, None],
    "NOT (load > 2 OR busy)": [False, True, False, None],
    "load BETWEEN -1 AND 2.5": [True, True, False, None],
    "id NOT IN (7, 8)": [False, True, True, True],
    "ip = 'it\\'s \\\\ x'": [False, False, True, None],
    "ip LIKE '92.%'": [True, False, False, None],
    "ip ILIKE '%MIXED%'": [False, True, False, None],
    "'it\\'s ab x' LIKE ip": [False, False, None, None],  # the pattern is a value with a lone backslash: null
    "ip LIKE replace(ip, '\\\\', '\\\\\\\\')": [True, True, True, None],
    "ip LIKE concat('%', substring(ip, 5, 2))": [False, False, None, None],
    "ip IS NULL": [False, False, False, True],
    "busy IS NOT TRUE": [False, True, True, True],
    "load <=> NULL": [False, False, False, True],
    "id + 1": [8, -2, 2**62 + 1, 1],
    "id * 4": [28, -12, None, 0],  # 2⁶⁴ is too large: null, not an error
    "-id": [-7, 3, -(2**62), 0],
    "id % 5": [2, -3, 2**62 % 5, 0],
    "id % 0": [None, None, None, None],
    "10 / id": [10 / 7, 10 / -3, 10 / 2**62, None],
    "load - 0.5": [2.0, -1.0, 1e300, None],
    "CAST(ip AS double)": [None, None, None, None],
    "CAST(id AS string)": ["7", "-3", str(2**62), "0"],
    "CAST('12' AS bigint) + id": [19, 9, 2**62 + 12, 12],
    "CASE WHEN load > 2 THEN 'high' WHEN load > 0 THEN 'low' ELSE 'none' END": ["high", "none", "high", "none"],
    "if(busy, 1, 2)": [1, 2, 2, 2],
    "coalesce(load, 0)": [2.5, -0.5, 1e300, 0.0],
    "nvl(load, 1.5)": [2.5, -0.5, 1e300, 1.5],
    "nullif(id, 7)": [None, -3, 2**62, 0],
    "greatest(id, 3)": [7, 3, 2**62, 3],
    "least(load, 1)": [1.0, -0.5, 1.0, 1.0],
    "lower(trim(ip))": ["92.126.10.7", "mixed", "it's \\ x", None],
    "upper(ip)": ["92.126.10.7", " MIXED ", "IT'S \\ X", None],
    "length(ip)": [11, 7, 8, None],
    "ip || '!'": ["92.126.10.7!", " Mixed !", "it's \\ x!", None],
    "concat(ip, '/', ip)": ["92.126.10.7/92.126.10.7", " Mixed / Mixed ", "it's \\ x/it's \\ x", None],
    "substring(ip, 1, 2)": ["92", " M", "it", None],
    "substr(ip, 4)": ["126.10.7", "xed ", "s \\ x", None],
    "replace(ip, '.', '-')": ["92-126-10-7", " Mixed ", "it's \\ x", None],
    "split_part(ip, '.', 2)": ["126", "", "", None],
    "split_part(ip, '.', id)": ["", "", None, None],
    "startswith(ip, '92')": [True, False, False, None],
    "endswith(ip, 'x')": [False, False, True, None],
    "contains(ip, 'x')": [False, True, True, None],
    "abs(id)": [7, 3, 2**62, 0],
    "round(load)": [3.0, -1.0, 1e300, None],
    "round(load / 3, 2)": [0.83, -0.17, 1e300 / 3, None],
    "floor(load)": [2.0, -1.0, 1e300, None],
    "ceil(load)": [3.0, 0.0, 1e300, None],
    "sqrt(load * load)": [2.5, 0.5, float("inf"), None],
    "ln(exp(1))": [1.0] * 4,
    "log10(100)": [2.0] * 4,
    "power(2, 10)": [1024.0] * 4,
    "in_subnet(ip, '92.126.8.0/21')": [True, False, False, None],
    "in_subnet(ip, '0.0.0.0/0')": [True, False, False, None],
    "in_subnet(ip, '92.126.10.7/32')": [True, False, False, None],
    "in_subnet(concat(ip, '3'), '92.126.10.7/32')": [False, False, False, None],
}


def test_spark_computes_what_was_written(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in ROWS], "id bigint, load double, ip string, busy boolean"
    )
    compiled = {text: value(text, SCOPE) for text in CASES}
    table = frame.selectExpr(*(f"{found.sql} AS c{n}" for n, found in enumerate(compiled.values()))).toArrow()
    kinds = {"bigint": int, "double": float, "string": str, "boolean": bool}
    for number, (text, expected) in enumerate(CASES.items()):
        got = table[f"c{number}"].to_pylist()
        assert got == [one if not isinstance(one, float) else pytest.approx(one) for one in expected], text
        for one in got:
            assert one is None or isinstance(one, kinds[compiled[text].type]), text
    assert {name for name in FUNCTIONS if any(f"{name}(" in text for text in CASES)} == set(FUNCTIONS)


def test_subnets_agree_with_ipaddress_on_any_text(spark: SparkSession) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    subnets = [
        network(f"{ipaddress.IPv4Address(rng.getrandbits(n) << (32 - n) if n else 0)}/{n}") for n in range(33)
    ]
    texts = [str(ipaddress.IPv4Address(rng.getrandbits(32))) for _ in range(100)]
    texts += [str(subnet[rng.randrange(subnet.num_addresses)]) for subnet in subnets for _ in range(3)]
    for text in texts[:200]:
        place = rng.randrange(len(text))
        texts.append(text[:place] + rng.choice(["", ".", "0", "25", "-", "\n", " ", "a", "٣"]) + text[place:])
        texts.append(text + rng.choice(["\n", ".", ".1", "0", " "]))
    texts += [f"{subnet.network_address}{end}" for subnet in subnets for end in ["0", "3", "55"]]
    frame = spark.createDataFrame([(text,) for text in texts], "ip string")
    table = frame.selectExpr(*(f"{in_subnet('ip', subnet)} AS c{n}" for n, subnet in enumerate(subnets))).toArrow()
    for number, subnet in enumerate(subnets):
        expected = [_inside(text, subnet) for text in texts]
        wrong = [
            text for text, a, b in zip(texts, expected, table[f"c{number}"].to_pylist(), strict=True) if a != b
        ]
        assert not wrong, (seed, subnet, wrong)


def _inside(text: str, subnet: ipaddress.IPv4Network) -> bool:
    try:
        return ipaddress.IPv4Address(text) in subnet
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("load", "is not an aggregate"), ("max(load) + 1", "is not an aggregate"), ("sum(ip)", "sum needs a number")],
)
def test_aggregates_are_checked(text: str, complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        aggregate(text, SCOPE)


def test_aggregates_compute(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in ROWS], "id bigint, load double, ip string, busy boolean"
    )
    texts = ["count(*)", "count(load)", "max(load)", "min(id)", "avg(id % 5)", "sum(id * 4)", "stddev(id % 5)"]
    (row,) = frame.selectExpr(*(aggregate(text, SCOPE).sql for text in texts)).collect()
    expected = [4, 3, 1e300, -3, (2 - 3 + 2**62 % 5) / 4, 16.0]
    assert list(row)[:6] == [pytest.approx(one) for one in expected]
    assert row[6] == pytest.approx(statistics.stdev([2, -3, 2**62 % 5, 0]))
