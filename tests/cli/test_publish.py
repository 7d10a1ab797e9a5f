"""flyball publish as a user runs it: exact counts, one sentence for each mistake, nothing lost by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from flyball.cli import main
from flyball.store import Outbox, SqliteDatabase
from tests.cli.programs import FLYBALL, figures, flyball


def drained(url: str, queue: str, *options: object) -> Sequence[bytes]:
    run = flyball("consume", url, queue, "--idle", 0.5, "--out", "-", "-q", *options)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.splitlines()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'broker.db'}"


def test_generated_load_is_counted_exactly(url: str) -> None:
    run = flyball("publish", url, "q", "--declare", "queue", "--count", 1234, "--size", 100, "--json", "--quiet")
    stats = figures(run)
    assert (stats["sent"], stats["confirmed"], stats["failed"], stats["bytes"]) == (1234, 1234, 0, 123_400)
    latency = stats["latency_ms"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert stats["rate_per_s"] > 0
    assert run.stderr == b""
    assert [channel["depth"] for channel in json.loads(flyball("queues", url, "--json").stdout)] == [1234]


def test_lines_of_a_file_and_of_standard_input_arrive_in_order(url: str, tmp_path: Path) -> None:
    lines = [f"line {number} é".encode() for number in range(500)]
    file = tmp_path / "events.txt"
    file.write_bytes(b"\n".join(lines))  # the last line has no end
    assert (
        figures(flyball("publish", url, "q", "--declare", "queue", "--file", file, "--json"))["confirmed"] == 500
    )
    piped = flyball("publish", url, "q", "--file", "-", "--json", stdin=b"\r\n".join(lines) + b"\r\n")
    assert figures(piped)["confirmed"] == 500
    assert drained(url, "q") == lines * 2


def test_a_line_of_a_slow_pipe_is_sent_at_once(url: str) -> None:
    flyball("publish", url, "q", "--declare", "queue", "--count", 0)
    with subprocess.Popen(
        [*FLYBALL, "publish", url, "q", "--file", "-", "--json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        publisher.stdin.write(b"first\n")
        publisher.stdin.flush()
        assert flyball("consume", url, "q", "--count", 1, "--out", "-").stdout == b"first\n"
        publisher.stdin.write(b"second\n")
        publisher.stdin.close()
        assert json.loads(publisher.stdout.read())["confirmed"] == 2
    assert drained(url, "q") == [b"second"]


def test_a_whole_file_a_text_and_an_empty_body(url: str, tmp_path: Path) -> None:
    file = tmp_path / "body.bin"
    file.write_bytes(b"a b\tc")
    flyball("publish", url, "q", "--declare", "queue", "--file", file, "--whole")
    flyball("publish", url, "q", "--body", "text", "--count", 2)
    flyball("publish", url, "q", "--body", "")
    assert drained(url, "q") == [b"a b\tc", b"text", b"text", b""]


def test_keys_spread_over_the_partitions_of_a_log(url: str) -> None:
    stats = figures(
        flyball(
            "publish", url, "l", "--declare", "log", "--partitions", 3, "--count", 300, "--keys", 30,
            "--header", "colour=red", "--content-type", "text/plain", "--json",
        )
    )  # fmt: skip
    assert stats["confirmed"] == 300
    run = flyball("consume", url, "l", "--group", "g", "--count", 300, "--json")
    assert figures(run)["received"] == 300
    listed = json.loads(flyball("queues", url, "--json").stdout)
    assert [(channel["kind"], channel["partitions"]) for channel in listed if channel["name"] == "l"] == [
        ("log", 3)
    ]


def test_a_rate_bounds_how_many_are_sent(url: str) -> None:
    stats = figures(
        flyball("publish", url, "q", "--declare", "queue", "--rate", 200, "--seconds", 1, "--size", 10, "--json")
    )
    # Message n is due n / rate after the start: 200 in one second, never more; a busy machine may do less.
    assert 0 < stats["confirmed"] <= 201
    assert stats["sent"] == stats["confirmed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_everything_confirmed_that_was_sent(url: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*FLYBALL, "publish", url, "q", "--declare", "queue", "--rate", "300", "--count", "100000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as publisher:
        assert publisher.stderr is not None
        assert publisher.stdout is not None
        assert b"confirmed" in publisher.stderr.readline()
        publisher.send_signal(number)
        stats = json.loads(publisher.stdout.read())
    assert publisher.returncode == 128 + number
    assert stats["sent"] == stats["confirmed"] > 0
    assert figures(flyball("consume", url, "q", "--idle", 0.5, "--json"))["received"] == stats["confirmed"]


def test_messages_that_are_too_large_do_not_stop_the_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'small.db'}?max_body_bytes=10"
    file = tmp_path / "events.txt"
    file.write_bytes(b"fits\n" + b"x" * 11 + b"\nfits too\n")
    run = flyball("publish", url, "q", "--declare", "queue", "--file", file, "--json")
    assert run.returncode == 2
    stats = json.loads(run.stdout)
    assert (stats["sent"], stats["confirmed"], stats["failed"]) == (3, 2, 1)
    assert b"1 of 3 messages were not stored, the first is number 2: message" in run.stderr
    assert drained(url, "q") == [b"fits", b"fits too"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nonsense", "q", "--count", 1), "invalid broker URL 'nonsense'"),
        (("ftp://localhost", "q", "--count", 1), "unknown scheme ftp://"),
        (("amqp://localhost:99999", "q", "--count", 1), "between 1 and 65535, got '99999'"),
        (("URL", "none", "--count", 1), "there is no queue or log 'none' in this SQLite file: declare it first"),
        (("URL", "none", "--count", 1), "flyball publish --declare queue"),
        (("URL", "bad name", "--count", 1, "--declare", "queue"), "invalid channel name 'bad name'"),
        (("URL", "q"), "nothing to publish"),
        (("URL", "q", "--file", "/no/such/file"), "cannot read '/no/such/file': No such file"),
        (("URL", "q", "--file", "x", "--body", "y"), "exclude each other"),
        (("URL", "q", "--whole"), "--whole needs --file"),
        (("URL", "q", "--count", 1, "--header", "nameonly"), "--header must be NAME=VALUE"),
        (("URL", "q", "--count", 1, "--rate", 0), "--rate must be > 0, got 0"),
        (("URL", "q", "--count", 1, "--declare", "topic"), "queue or log, got 'topic'"),
        (("URL", "q", "--count", 1, "--key", "k", "--keys", 2), "exclude each other"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    url: str, arguments: Sequence[object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["publish", *[url if word == "URL" else str(word) for word in arguments]])
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert sentence in printed.err
    assert printed.err.startswith("flyball: ")
    assert printed.err.count("\n") == 1, printed.err
    assert printed.out == ""


def test_a_broker_that_is_not_there_is_named_without_the_password(closed_port: int) -> None:
    run = flyball("publish", f"amqp://me:secret@127.0.0.1:{closed_port}/", "q", "--count", 1)
    assert run.returncode == 2
    assert f"127.0.0.1:{closed_port}" in run.stderr.decode()
    assert b"secret" not in run.stderr
    assert b"Traceback" not in run.stderr


def test_rabbitmq_delivers_the_messages_that_were_published(amqp_url: str, tmp_path: Path) -> None:
    lines = [f"line {number}".encode() for number in range(300)]
    file = tmp_path / "events.txt"
    file.write_bytes(b"\n".join(lines))
    queue = f"publish-test-{tmp_path.name}"
    published = flyball("publish", amqp_url, queue, "--declare", "queue", "--file", file, "--json")
    assert figures(published)["confirmed"] == 300
    assert drained(amqp_url, queue, "--count", 300) == lines
    refused = flyball("publish", amqp_url, "no-such-queue", "--count", 5)
    assert refused.returncode == 2
    assert b"no-such-queue" in refused.stderr
    assert refused.stderr.count(b"\n") == 1


def test_an_outbox_file_has_what_a_killed_run_had_accepted(url: str, tmp_path: Path) -> None:
    lines = [f"line {number}".encode() for number in range(100_000)]
    file, outbox = tmp_path / "events.txt", tmp_path / "outbox.db"
    file.write_bytes(b"\n".join(lines))
    arguments = ("publish", url, "q", "--declare", "queue", "--outbox", str(outbox))
    with subprocess.Popen([*FLYBALL, *arguments, "--file", str(file)], stderr=subprocess.PIPE) as publisher:
        assert publisher.stderr is not None
        assert b"confirmed" in publisher.stderr.readline()
        publisher.kill()
    assert flyball(*arguments, "--count", 0).returncode == 0
    with SqliteDatabase(outbox) as database:
        assert Outbox(database).pending() == (0, 0)
    arrived = list(dict.fromkeys(drained(url, "q")))
    assert arrived == lines[: len(arrived)]
    assert arrived
