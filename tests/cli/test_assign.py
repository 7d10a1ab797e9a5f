"""flyball assign: cases in, plans out; mistakes are one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import main


def _assign(tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: Any, *options: str) -> tuple[int, str, str]:
    path = tmp_path / "cases.json"
    path.write_text(cases if isinstance(cases, str) else json.dumps(cases))
    with pytest.raises(SystemExit) as end:
        main(["assign", str(path), *options])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def _solved(tmp_path: Path, capsys: pytest.CaptureFixture[str], *cases: dict[str, Any]) -> dict[str, Any]:
    code, out, err = _assign(tmp_path, capsys, list(cases), "--json")
    assert (code, err) == (0, "")
    solved: dict[str, Any] = json.loads(out)
    return solved


def test_a_sticky_case_with_racks_generations_and_a_zombie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {
        "id": "one",
        "strategy": "sticky",
        "topics": {"t": 2, "u": [5, 7]},
        "members": {"a": {"topics": ["t", "u"], "rack": "r1"}, "b": {"topics": ["t", "u"], "rack": "r2"}},
        "previous": {"a": [["t", 0], ["u", 5]], "b": [["t", 0]], "gone": [["t", 1]]},
        "generation": {"a": 3, "b": 2},
        "rack_aware": True,
        "queue_racks": [[["u", 5], ["r2"]], [["t", 1], ["r1"]]],
    }
    result = _solved(tmp_path, capsys, case)["one"]
    assert result["assignment"] == {"a": [["t", 0], ["t", 1]], "b": [["u", 5], ["u", 7]]}
    assert result["revoke"] == {"a": [["u", 5]], "b": [["t", 0]]}
    assert result["assign"] == {"a": [["t", 1]], "b": [["u", 5], ["u", 7]]}
    metrics = result["metrics"]
    assert (metrics["balance_degree"], metrics["stickiness"]) == (0.0, 0.25)
    assert (metrics["moves"], metrics["fewest_moves"]) == (1, 0)


def test_the_strategies_of_rocketmq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queues = [f"t/r1-b/{number}" for number in range(3)]
    solved = _solved(
        tmp_path,
        capsys,
        {
            "id": "a",
            "strategy": "averagely",
            "queues": queues,
            "members": ["m2", "m1"],
            "previous": {"m2": queues},
        },
        {"id": "c", "strategy": "averagely-by-circle", "queues": queues, "members": ["m1", "m2"], "client": "m2"},
        {"id": "h", "strategy": "consistent-hash", "queues": queues, "members": ["m1"], "virtual_nodes": -1},
        {
            "id": "o",
            "strategy": "by-config",
            "queues": queues,
            "members": ["m1"],
            "config": ["x/y/1"],
            "client": "z",
        },
        {"id": "r", "strategy": "by-machine-room", "queues": ["t/r1@b/0"], "members": ["m1"], "rooms": ["r2"]},
        {"id": "n", "strategy": "machine-room-nearby", "queues": queues, "members": ["r1-m", "r2-m"]},
        {"id": "e", "strategy": "averagely", "queues": [], "members": []},
    )
    assert solved["a"]["assignment"] == {"m1": queues[:2], "m2": queues[2:]}
    assert solved["a"]["revoke"] == {"m2": queues[:2]}
    assert (solved["a"]["metrics"]["moves"], solved["a"]["metrics"]["fewest_moves"]) == (2, 1)
    assert solved["c"]["assignment"] == {"m2": queues[1:2]}
    assert solved["h"] == {"error": "virtual_nodes must be an integer >= 0, got -1"}
    assert solved["o"]["assignment"] == {"z": ["x/y/1"]}
    assert solved["r"]["assignment"] == {"m1": []}
    assert solved["n"]["assignment"] == {"r1-m": queues, "r2-m": []}
    assert solved["e"] == {"error": "queues must name at least one queue, got none"}


def test_a_load_case_weighs_queues_and_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {
        "id": "l",
        "strategy": "load",
        "topics": {"t": 3},
        "members": {"a": {"topics": ["t"], "capacity": 3.0}, "b": {"topics": ["t"]}},
        "previous": {"b": [["t", 0], ["t", 1], ["t", 2]]},
        "weights": [[["t", 0], 0.9], [["t", 1], 0.9], [["t", 2], 0.5]],
    }
    result = _solved(tmp_path, capsys, case)["l"]
    assert result["assignment"] == {"a": [["t", 0], ["t", 1]], "b": [["t", 2]]}
    assert result["metrics"]["largest_utilisation"] == pytest.approx(0.6)
    assert result["metrics"]["too_heavy"] == []
    code, out, _ = _assign(tmp_path, capsys, [case])
    assert (code, "largest utilisation 0.6" in out) == (0, True)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ({"strategy": "fastest"}, "strategy of case 'x' must be one of sticky, load, averagely"),
        ({"strategy": "sticky", "topics": {"t": -1}, "members": {}}, "greater than or equal to 0"),
        (
            {"strategy": "sticky", "topics": {"t": [1, 1]}, "members": {"a": {"topics": []}}},
            "must differ, got [1, 1]",
        ),
        (
            {"strategy": "sticky", "topics": {"t": 1}, "members": {}},
            "members must name at least one member, got none",
        ),
        ({"strategy": "sticky", "topics": {"t": 1}, "member": {}, "members": {}}, "no key member"),
        (
            {"strategy": "by-config", "queues": [], "members": [], "config": ["x"]},
            "must be topic/broker/number, got 'x'",
        ),
        ({"strategy": "averagely", "queues": ["t/b"], "members": ["m"]}, "must be topic/broker/number, got 't/b'"),
        (
            {"strategy": "load", "topics": {"t": 2}, "members": {"a": {"topics": []}}},
            "weights must name every queue",
        ),
        ({"strategy": "load", "topics": {}, "members": {"a": {"topics": [], "capacity": 0}}}, "greater than 0"),
        ({}, "must be one of sticky, load, averagely"),
        (
            {"strategy": "sticky", "topics": {"t": 10**18}, "members": {"a": {"topics": []}}},
            "at most 5000000 queues",
        ),
        ({"strategy": "sticky", "topics": {"t": "3"}, "members": {"a": {"topics": []}}}, "topics.t"),
        ({"strategy": "sticky", "topics": {"t": True}, "members": {"a": {"topics": []}}}, "topics.t"),
        (
            {"strategy": "sticky", "topics": {}, "members": {"a": {"topics": []}}, "rack_aware": "yes"},
            "rack_aware",
        ),
        (
            {"strategy": "consistent-hash", "queues": ["t/b/0"], "members": ["m"], "virtual_nodes": 10**12},
            "virtual_nodes × members must be at most 5000000, got 1000000000000 × 1",
        ),
        (
            {"strategy": "averagely", "queues": ["t/b/0"], "members": ["m"], "previous": {"m": ["t"]}},
            "previous: a queue must be topic/broker/number, got 't'",
        ),
    ],
)
def test_a_case_with_a_mistake_has_an_error_and_the_others_are_solved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: dict[str, Any], sentence: str
) -> None:
    good = {"id": "good", "strategy": "sticky", "topics": {"t": 1}, "members": {"a": {"topics": ["t"]}}}
    solved = _solved(tmp_path, capsys, {"id": "x", **case}, good)
    assert sentence in solved["x"]["error"]
    assert solved["good"]["assignment"] == {"a": [["t", 0]]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"id": "x"}', "cases must be a list of objects with id and strategy, got dict"),
        ("[1]", "case number 1 must be an object with a text as id, got 1"),
        ('[{"id": "x"}, {"id": "x"}]', "ids of cases must differ, got 'x' twice"),
    ],
)
def test_a_file_without_cases_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    code, out, err = _assign(tmp_path, capsys, text, "--json")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_the_table_shows_what_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"id": "x", "strategy": "sticky", "topics": {"t": 3}, "members": {"a": {"topics": ["t"]}}}
    code, out, _ = _assign(tmp_path, capsys, [case])
    assert code == 0
    assert "x: balance degree 0, stickiness 0, moves 0 (fewest possible 0)" in out
    assert out.splitlines()[-1].split() == ["a", "3", "0", "3"]


def test_half_a_character_is_printed_and_hashed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {"id": "\ud800", "strategy": "consistent-hash", "queues": ["t/b/0"], "members": ["\ud801"]}
    code, out, err = _assign(tmp_path, capsys, [case])
    assert (code, err) == (0, "")
    assert out.startswith("\\ud800: balance degree 0")


def test_random_damage_to_a_case_is_an_error_of_that_case_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(11)
    queues = ["t/r1-b/0", "t/r1-b/1"]
    whole: list[dict[str, Any]] = [
        {
            "strategy": "sticky",
            "topics": {"t": 3, "u": [5, 7]},
            "members": {"a": {"topics": ["t", "u"], "rack": "r1", "capacity": 2.0}, "b": {"topics": ["t"]}},
            "previous": {"a": [["t", 0], ["u", 5]], "gone": [["t", 1]]},
            "generation": {"a": 3},
            "rack_aware": True,
            "queue_racks": [[["u", 5], ["r2"]]],
            "weights": [[["t", 0], 1.0]],
        },
        {
            "strategy": "load",
            "topics": {"t": 1},
            "members": {"a": {"topics": ["t"], "capacity": 2}},
            "weights": [[["t", 0], 1.0]],
            "band": 0.1,
        },
        {"strategy": "averagely", "queues": queues, "members": ["m", "n"], "previous": {"m": queues}},
        {"strategy": "consistent-hash", "queues": queues, "members": ["m", "n"], "virtual_nodes": 3},
        {"strategy": "by-config", "queues": queues, "members": ["m"], "config": ["t/b/9"]},
        {"strategy": "by-machine-room", "queues": ["t/r@b/0"], "members": ["m", "n"], "rooms": ["r"]},
        {"strategy": "machine-room-nearby", "queues": queues, "members": ["r1-m"], "inner": "consistent-hash"},
    ]
    junk = [None, True, -1, 2**63, 1e308, "", "t", "t//0", [], {}, [None], {"t": -5}, {"a": None}, [["t", 0, 1]]]
    damaged = [_damaged(draw, draw.choice(whole), junk) for _ in range(1_500)]
    cases = [{**case, "id": str(number)} for number, case in enumerate(damaged) if isinstance(case, dict)]
    solved = _solved(tmp_path, capsys, *cases)
    assert len(solved) == len(cases)
    for result in solved.values():
        assert set(result) == {"error"} or set(result) == {"assignment", "revoke", "assign", "metrics"}
        assert "\n" not in result.get("error", "")
        assert len(result.get("error", "")) < 600
    assert 100 < sum("error" in result for result in solved.values()) < len(cases)


def _damaged(draw: random.Random, case: Any, junk: list[Any]) -> Any:
    """A copy of the case in which a value, somewhere, is replaced or removed."""
    if not case or not isinstance(case, dict | list) or draw.random() < 0.15:
        return draw.choice(junk)
    copy = dict(case) if isinstance(case, dict) else list(case)
    key = draw.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    if draw.random() < 0.2:
        del copy[key]
    else:
        copy[key] = _damaged(draw, copy[key], junk)
    return copy
