"""flyball groups: the groups of a store are listed, shown, foreseen and advised on; nothing is changed."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import main
from flyball.groups.coordinator import Coordinator
from flyball.groups.group_store import GroupStore
from flyball.groups.policy.reports import HandOvers, QueueLoad, Report
from flyball.groups.policy.rules import GroupRules
from flyball.store import open_database


@dataclass
class Run:
    code: int
    stdout: str
    stderr: str


def flyball(*arguments: object) -> Run:
    """Run the command in this process: it is the same code, and starts at once."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(["groups", *map(str, arguments)])
    return Run(int(end.value.code or 0), out.getvalue(), err.getvalue())


def document(*arguments: object) -> Any:
    run = flyball(*arguments, "--json")
    assert run.code == 0, run.stderr
    return json.loads(run.stdout)


def fill(url: str, **members: Report) -> None:
    """A group whose members have applied what the coordinator decided."""
    with closing(open_database(url)) as database:
        store = GroupStore(database, "shop")
        coordinator = Coordinator(store, GroupRules(coalesce_s=1e-6), "m1#1", ttl_s=1000.0)
        tokens = {name: store.begin(name, report, 1000.0) for name, report in members.items()}
        for _ in range(3):
            state = store.read().state
            for name, token in tokens.items():
                owned = state.granted_to(name, token)
                store.renew(name, token, replace(members[name], owned=owned, round=state.round), 1000.0)
            coordinator.run_round()


def orders(**report: Any) -> Report:
    return Report({"orders": 8}, **report)


def test_groups_are_listed_and_shown(store_url: str) -> None:
    fill(store_url, m1=orders(), m2=orders(rack="r1"), m3=orders())
    assert document("list", store_url) == [
        {
            "group": "shop",
            "members": 3,
            "queues": 8,
            "owned": 8,
            "leader": "m1",
            "strategy": "sticky",
            "plans": 1,
        }
    ]
    found = document("show", store_url, "shop")
    assert found["leader"] == "m1"
    assert [len(member["granted"]) for member in found["members"]] == [3, 3, 2]
    assert found["members"][1]["owned"][0] == {"queue": ["orders", 1], "generation": 1}
    assert found["members"][1]["rack"] == "r1"
    assert found["history"][0]["reason"].startswith("m1, m2, m3 joined")
    assert (found["history"][0]["moves"], found["history"][0]["fewest_moves"]) == (0, 0)
    printed = flyball("show", store_url, "shop", "--queues").stdout
    assert "8 of 8 queues owned" in printed
    assert "orders.7" in printed


def test_what_would_move(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/groups.db"
    fill(url, m1=orders(), m2=orders(), m3=orders())
    before = document("show", url, "shop")
    gone = document("what-if", url, "shop", "--leave", "m2")
    assert {tuple(move["queue"]) for move in gone["moves"]} == {("orders", 1), ("orders", 4), ("orders", 7)}
    assert gone["metrics"]["moves"] == 0  # only what m2 had
    more = document("what-if", url, "shop", "--join", "m4", "--join", "m5=orders", "--queues", "orders=10")
    assert sorted(map(len, more["assignment"].values())) == [2, 2, 2, 2, 2]
    assert more["metrics"]["moves"] == more["metrics"]["fewest_moves"] == 2
    other = document("what-if", url, "shop", "--strategy", "averagely")
    assert other["assignment"]["m1"] == [["orders", 0], ["orders", 1], ["orders", 2]]
    assert other["metrics"]["moves"] > other["metrics"]["fewest_moves"]
    assert document("what-if", url, "shop", "--strategy", "load", "--join", "m9")["assignment"].keys() == {
        "m1",
        "m2",
        "m3",
        "m9",
    }
    assert "m2               3     0" in flyball("what-if", url, "shop", "--leave", "m2").stdout
    assert document("show", url, "shop") == before


def test_advice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/groups.db"
    weights = [0.3, 0.1, 0.3, 0.1, 0.3, 0.1, 0.3, 0.1]
    loads = {("orders", n): QueueLoad(100.0, weight / 100) for n, weight in enumerate(weights)}
    fill(url, m1=orders(loads=loads, hand_overs=HandOvers(1, 5)), m2=orders())
    codes = [advice["code"] for advice in document("advise", url, "shop")]
    assert codes == ["uneven-load", "forced"]
    assert 'use strategy = "load"' in flyball("advise", url, "shop").stdout
    assert document("advise", url, "shop", "--unordered")[0]["code"] == "unordered"


def test_advice_for_a_group_without_trouble_and_for_one_with_idle_members(tmp_path: Path) -> None:
    fine, idle = f"sqlite:///{tmp_path}/fine.db", f"sqlite:///{tmp_path}/idle.db"
    fill(fine, m1=orders(), m2=orders())
    assert [advice["code"] for advice in document("advise", fine, "shop")] == ["fine"]
    fill(idle, m1=Report({"orders": 1}), m2=Report({"orders": 1, "bills": None}))
    assert [advice["code"] for advice in document("advise", idle, "shop")] == ["unknown-topic", "idle-members"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "groups.db"], "store must be a URL like sqlite:///groups.db or postgresql://user@host/database"),
        (["list", "sqlite:///{}/absent.db"], "absent.db: name the store of a group or cluster"),
        (
            ["list", "sqlite:///{}/other.db"],
            "other.db has no tables of Flyball: name the store of a group or cluster",
        ),
        (["show", "sqlite:///{}/groups.db", "shp"], "there is no group 'shp' in the store: it has shop"),
        (["what-if", "sqlite:///{}/groups.db", "shop"], "name at least one change: --leave, --join, --queues or"),
        (
            ["what-if", "sqlite:///{}/groups.db", "shop", "--leave", "m7"],
            "there is no member 'm7': the group has m1",
        ),
        (["what-if", "sqlite:///{}/groups.db", "shop", "--leave", "m1"], "nobody would be left to read"),
        (["what-if", "sqlite:///{}/groups.db", "shop", "--join", "m1"], "member 'm1' is in the group already"),
        (
            ["what-if", "sqlite:///{}/groups.db", "shop", "--join", "m2=x"],
            "there is no topic 'x': the group has orders",
        ),
        (
            ["what-if", "sqlite:///{}/groups.db", "shop", "--join", "="],
            "--join must be MEMBER or MEMBER=TOPIC,TOPIC",
        ),
        (
            ["what-if", "sqlite:///{}/groups.db", "shop", "--queues", "orders"],
            "--queues must be TOPIC=NUMBER, got",
        ),
        (["what-if", "sqlite:///{}/groups.db", "shop", "--queues", "x=3"], "there is no topic 'x'"),
        (
            ["what-if", "sqlite:///{}/groups.db", "shop", "--strategy", "best"],
            "--strategy must be one of sticky, load",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_create_nothing(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    fill(f"sqlite:///{tmp_path}/groups.db", m1=orders())
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    run = flyball(*(argument.format(tmp_path) for argument in arguments))
    assert run.code == 2
    assert sentence in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "absent.db").exists()
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        assert other.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)
