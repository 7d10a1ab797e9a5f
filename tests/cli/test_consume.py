"""flyball consume as a user runs it: exact counts, groups, and what was not acknowledged goes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flyball.cli import main

FLYBALL = [sys.executable, "-m", "flyball"]


def flyball(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*FLYBALL, *map(str, arguments)], input=stdin, capture_output=True)


def figures(run: subprocess.CompletedProcess[bytes]) -> Any:
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A broker whose queue q holds the lines 0 to 999."""
    address = f"sqlite:///{tmp_path / 'broker.db'}"
    lines = "\n".join(map(str, range(1000))).encode()
    run = flyball("publish", address, "q", "--declare", "queue", "--file", "-", stdin=lines)
    assert run.returncode == 0, run.stderr.decode()
    return address


def test_count_takes_exactly_that_many_and_leaves_the_rest(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    stats = figures(flyball("consume", url, "q", "--count", 250, "--window", 40, "--out", out, "--json"))
    assert (stats["received"], stats["acked"], stats["redelivered"], stats["duplicates"]) == (250, 250, 0, 0)
    assert stats["bytes"] == sum(len(str(number)) for number in range(250))
    assert 0 < stats["latency_ms"]["p50"] <= stats["latency_ms"]["max"]
    assert out.read_bytes().splitlines() == [str(number).encode() for number in range(250)]
    rest = flyball("consume", url, "q", "--idle", 0.5, "--out", "-")
    assert rest.stdout.splitlines() == [str(number).encode() for number in range(250, 1000)]
    assert b"received" in rest.stderr


def test_every_group_gets_every_message_and_patterns_match(url: str) -> None:
    for group in ("audit", "billing"):
        assert flyball("consume", url, "city.*.load", "--group", group, "--count", 0).returncode == 0
    for city in ("lyon", "oslo"):
        flyball("publish", url, f"city.{city}.load", "--declare", "queue", "--body", city)
    flyball("publish", url, "city.lyon.rain", "--declare", "queue", "--body", "no")
    for group in ("audit", "billing"):
        run = flyball("consume", url, "city.*.load", "--group", group, "--count", 2, "--out", "-")
        assert sorted(run.stdout.split()) == [b"lyon", b"oslo"]


def test_the_same_message_twice_is_counted_as_a_duplicate(url: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from flyball.brokers import Message, connect\n"
        "async def main():\n"
        "    async with await connect(sys.argv[1]) as broker:\n"
        "        sender = await broker.sender('q')\n"
        "        for _ in range(3):\n"
        "            await sender.send_batch([Message(b'again', id='same')])\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program, url], check=True)
    stats = figures(flyball("consume", url, "q", "--idle", 0.5, "--window", 1, "--json"))
    assert stats["received"] == 1003
    assert stats["duplicates"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_loses_nothing(url: str, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "first.txt"
    with subprocess.Popen(
        [*FLYBALL, "consume", url, "q", "--window", "7", "--out", str(out), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as consumer:
        assert consumer.stdout is not None
        while not out.exists() or not out.stat().st_size:
            assert consumer.poll() is None
        consumer.send_signal(number)
        stats = json.loads(consumer.stdout.read())
    assert consumer.returncode == 0, "without --count a signal is the usual end"
    first = out.read_bytes().splitlines()
    assert stats["acked"] == stats["received"] == len(first) > 0
    rest = flyball("consume", url, "q", "--idle", 0.5, "--out", "-").stdout.splitlines()
    assert first + rest == [str(each).encode() for each in range(1000)]


def test_a_signal_before_the_count_is_reached_shows_in_the_exit_code(url: str) -> None:
    with subprocess.Popen(
        [*FLYBALL, "consume", url, "q", "--count", "1001"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        assert consumer.stderr is not None
        consumer.stderr.readline()
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate()
    assert consumer.returncode == 128 + signal.SIGTERM


def test_unacknowledged_messages_return_after_kill_9(url: str, tmp_path: Path) -> None:
    out = tmp_path / "first.txt"
    with subprocess.Popen([*FLYBALL, "consume", url, "q", "--window", "7", "--out", str(out), "-q"]) as consumer:
        while not out.exists() or not out.stat().st_size:
            assert consumer.poll() is None
        consumer.kill()
    first = out.read_bytes().split()
    rest = flyball("consume", url, "q", "--idle", 3, "--out", "-").stdout.split()
    assert set(first) | set(rest) == {str(each).encode() for each in range(1000)}


def test_a_reader_that_closes_the_pipe_loses_nothing(url: str) -> None:
    # More than a pipe holds, so that the consumer must notice that nobody reads any longer.
    lines = [f"{number:02000d}".encode() for number in range(200)]
    flyball("publish", url, "wide", "--declare", "queue", "--file", "-", stdin=b"\n".join(lines))
    head = subprocess.run(
        f"{sys.executable} -m flyball consume '{url}' wide --window 5 --out - -q | head -n 3",
        shell=True,
        capture_output=True,
    )
    assert head.stdout.splitlines() == lines[:3]
    assert b"Traceback" not in head.stderr
    rest = flyball("consume", url, "wide", "--idle", 0.5, "--out", "-").stdout.splitlines()
    # What was written into the pipe was acknowledged; what could not be written comes again.
    assert rest
    assert rest == lines[-len(rest) :]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("URL", "none"), "'none'"),
        (("URL", "q", "--out", "-", "--json"), "both write to standard output"),
        (("URL", "q", "--out", "/no/such/folder/file"), "cannot write '/no/such/folder/file'"),
        (("URL", "q", "--from", "middle"), "earliest or latest, got 'middle'"),
        (("URL?colour=red", "q"), "unknown option 'colour'"),
        (("sqlite:////no/such/folder/x.db", "q"), "/no/such/folder/x.db"),
        (("URL.absent", "q"), "there is no broker file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    flyball("publish", url, "q", "--declare", "queue", "--count", 0)
    with pytest.raises(SystemExit) as ended:
        main(["consume", *[word.replace("URL", url) for word in arguments], "--seconds", "5"])
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in printed
    assert printed.startswith("flyball: ")
    assert printed.count("\n") == 1, printed


def test_a_log_without_a_group_is_explained(url: str) -> None:
    flyball("publish", url, "l", "--declare", "log", "--count", 1)
    run = flyball("consume", url, "l", "--seconds", 1)
    assert run.returncode == 2
    assert b"group" in run.stderr


def test_a_wrong_password_is_one_sentence_that_does_not_show_it(amqp_url: str) -> None:
    scheme, _, rest = amqp_url.partition("://")
    host = rest.rpartition("@")[2]
    run = flyball("consume", f"{scheme}://guest:wrong-secret@{host}", "q", "--seconds", 1)
    assert run.returncode == 2
    assert b"wrong-secret" not in run.stderr
    assert run.stderr.count(b"\n") == 1, run.stderr.decode()
