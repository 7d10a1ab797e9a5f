"""flyball publish, consume and queues on the logs of real servers: Kafka and RabbitMQ streams."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cli.programs import figures, flyball


@pytest.fixture(params=["kafka", "stream"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        return str(request.getfixturevalue("kafka_url"))
    return str(request.getfixturevalue("rabbitmq").stream_url)


def test_what_is_published_is_consumed_and_listed(url: str, tmp_path: Path) -> None:
    log, group = f"cli.{uuid.uuid4().hex[:12]}", f"g{uuid.uuid4().hex[:12]}"
    lines = [b"%d" % number for number in range(500)]
    run = flyball("publish", url, log, "--declare", "log", "--file", "-", "--json", stdin=b"\n".join(lines))
    stderr = figures(run)
    assert (stderr["sent"], stderr["confirmed"], stderr["failed"]) == (500, 500, 0)
    out = tmp_path / "first.txt"
    stderr = figures(flyball("consume", url, log, "--group", group, "--count", 200, "--out", out, "--json"))
    assert (stderr["received"], stderr["acked"]) == (200, 200)
    rest = tmp_path / "rest.txt"
    stderr = figures(flyball("consume", url, log, "--group", group, "--count", 300, "--out", rest, "--json"))
    assert (stderr["received"], stderr["acked"]) == (300, 300)
    assert out.read_bytes().splitlines() + rest.read_bytes().splitlines() == lines
    listed = {each["name"]: each for each in figures(flyball("queues", url, "--json"))}
    assert (listed[log]["kind"], listed[log]["partitions"], listed[log]["depth"]) == ("log", 1, 500)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publish", "no.such.log", "--count", "1"), "no.such.log"),
        (("consume", "no.such.log", "--group", "g"), "no.such.log"),
        (("consume", "no.such.log"), "no queues"),
        (("publish", "q", "--declare", "queue", "--count", "1"), "no queues"),
    ],
)
def test_a_mistake_is_one_sentence(url: str, arguments: tuple[str, ...], words: str) -> None:
    run = flyball(arguments[0], url, *arguments[1:])
    said = run.stderr.decode()
    assert run.returncode == 2
    assert words in said
    assert (said.count("\n"), run.stdout) == (1, b""), said
