"""flyball consume as a user runs it: exact counts, groups, and what was not acknowledged goes back."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.cli import main
from tests.cli.programs import FLYBALL, figures, flyball


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


def test_it_goes_on_when_a_file_is_no_longer_locked(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    command = [*FLYBALL, "consume", f"{url}?busy_timeout_s=0.1", "q", "--count", "1000", "--out", str(out)]
    with (
        closing(sqlite3.connect(tmp_path / "broker.db", isolation_level=None)) as other,
        subprocess.Popen(
            [*command, "--window", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout is not None
        assert child.stderr is not None
        while not out.exists() or not out.stat().st_size:
            assert child.poll() is None
        other.execute("BEGIN IMMEDIATE")
        try:
            said = b""
            while b"locked for 0.1 s" not in said:
                said = child.stderr.readline()
                assert said, "it ended"
        finally:
            other.execute("ROLLBACK")
        stats = json.loads(child.stdout.read())
    assert b"trying again for 30 s" in said
    assert child.returncode == 0
    assert (stats["received"], stats["acked"]) == (1000, 1000)
    assert out.read_bytes().splitlines() == [str(number).encode() for number in range(1000)]


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


def test_an_unreadable_message_is_named_and_does_not_stop_the_run(tmp_path: Path) -> None:
    path, out = tmp_path / "damaged.db", tmp_path / "out.txt"
    program = (
        "import asyncio, sys\n"
        "from flyball.brokers import Message, connect\n"
        "async def main():\n"
        "    async with await connect(sys.argv[1]) as broker:\n"
        "        await broker.declare('q')\n"
        "        sender = await broker.sender('q')\n"
        "        for message in (Message(b'odd', headers={'n': '1234'}), Message(b'good')):\n"
        "            await sender.send_batch([message])\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program, f"sqlite:///{path}"], check=True)
    with closing(sqlite3.connect(path)) as file, file:
        batch, data = file.execute("SELECT batch, data FROM broker_payloads ORDER BY batch LIMIT 1").fetchone()
        damaged = data.replace(b'"1234"', b'"12"}}')
        file.execute("UPDATE broker_payloads SET data = ? WHERE batch = ?", (damaged, batch))
    done = flyball("consume", f"sqlite:///{path}", "q", "--idle", 0.5, "--out", out, "--json")
    stats = figures(done)
    assert (stats["received"], stats["acked"], stats["unreadable"]) == (2, 2, 1)
    assert out.read_bytes() == b"odd\ngood\n"
    assert b"of q is unreadable (headers, content types or ids of its batch are damaged" in done.stderr


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


def test_a_queue_that_is_deleted_ends_the_run_with_its_figures_and_one_sentence(url: str) -> None:
    async def delete_once_empty() -> None:
        async with await connect(url) as broker:
            while await broker.depth("q"):
                assert consumer.poll() is None
                await asyncio.sleep(0.05)
            await broker.delete("q")

    with subprocess.Popen(
        [*FLYBALL, "consume", url, "q", "-q", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        asyncio.run(delete_once_empty())
        stdout, stderr = consumer.communicate()
    assert consumer.returncode == 2
    assert stderr.decode() == "flyball: q was deleted while it was consumed\n"
    stats = json.loads(stdout)
    assert (stats["received"], stats["acked"]) == (1000, 1000)


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


def test_a_file_that_exists_is_appended_to_and_never_emptied(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    flyball("consume", url, "q", "--count", 2, "--out", out)
    run = flyball("consume", "amqp://127.0.0.1:1/", "q", "--out", out, "--seconds", 1)
    assert run.returncode == 2
    assert out.read_bytes() == b"0\n1\n"
    flyball("consume", url, "q", "--count", 1, "--out", out)
    assert out.read_bytes() == b"0\n1\n2\n"


def test_a_line_that_a_killed_run_left_unfinished_does_not_spoil_the_next(url: str, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    out.write_bytes(b"whole\nunfin")
    flyball("consume", url, "q", "--count", 1, "--out", out)
    assert out.read_bytes() == b"whole\nunfin\n0\n"
