"""flyball outbox: what a target refused is listed, shown, replayed and deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flyball.message import Message
from flyball.store import DeadLetters, Outbox, SqliteDatabase
from flyball.store.dead_letters import Rejection


class Entry(NamedTuple):
    message: Message
    channel: str = "orders"
    urgency: int = 4


def flyball(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flyball", "outbox", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def document(*arguments: object) -> Any:
    run = flyball(*arguments, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "o.db"
    with SqliteDatabase(path) as database:
        messages = [
            Message(b"text", "one", b"\xff", {"raw": b"\xff", "n": 1}, event_time_s=1e300),
            Message(b"\x00\xff", "two"),
            Message(b"fine", "three"),
        ]
        seqs = Outbox(database).append([Entry(message) for message in messages])
        DeadLetters(database, clock=lambda: 0.0).add(
            [Rejection(seq, "orders at memory://", f"reason {seq}") for seq in seqs[:2]]
        )
    return path


def test_dead_letters_are_listed_and_shown(file: Path) -> None:
    found = document("list", file)
    assert (found["waiting"], found["dead_letters"]) == (1, 2)
    assert [(each["number"], each["id"], each["reason"]) for each in found["listed"]] == [
        (1, "one", "reason 1"),
        (2, "two", "reason 2"),
    ]
    assert len(document("list", file, "--limit", 1)["listed"]) == 1
    printed = flyball("list", file)
    assert "1970-01-01T00:00:00+00:00  reason 1" in printed.stdout
    assert printed.stderr == "2 dead letters, 1 messages wait in the outbox\n"
    one, two = document("show", file, 1), document("show", file, 2)
    assert (one["body"], one["key"], one["headers"]) == (
        "text",
        {"base64": "/w=="},
        {"raw": {"base64": "/w=="}, "n": 1},
    )
    assert (two["body"], two["target"]) == ({"base64": "AP8="}, "orders at memory://")
    assert "reason 1" in flyball("show", file, 1).stdout


def test_dead_letters_are_replayed_and_deleted(file: Path) -> None:
    assert document("replay", file, 1) == {"replayed": 1}
    assert document("delete", file, "--all") == {"deleted": 1}
    found = document("list", file)
    assert (found["waiting"], found["dead_letters"], found["listed"]) == (2, 0, [])
    with SqliteDatabase(file) as database:
        assert [pending.message.id for pending in Outbox(database).read(0, 99, 10)] == ["three", "one"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("list", "none.db"), "there is no file none.db: name the outbox of a publisher"),
        (("show", "{file}", 9), "there is no dead letter 9: `flyball outbox list` shows their numbers"),
        (("replay", "{file}"), "name either the numbers of dead letters or --all"),
        (("delete", "{file}", 1, "--all"), "name either the numbers of dead letters or --all"),
        (("replay", "{file}", 1, 9), "there is no dead letter 9: `flyball outbox list` shows their numbers"),
        (("replay", "{file}", "x"), "invalid value for 'numbers': "),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[object, ...], sentence: str, file: Path) -> None:
    run = flyball(*(str(each).replace("{file}", str(file)) for each in arguments))
    assert run.returncode == 2
    assert run.stderr.startswith(f"flyball: {sentence}")
    assert run.stderr.count("\n") == 1, run.stderr
    assert document("list", file)["dead_letters"] == 2
