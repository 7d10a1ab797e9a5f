"""Runs Kafka's server-side assignor, from the broker's own jar, on the group of a benchmark case."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from flyball.groups.policy.load_blocks import Bools
from flyball.servers.kafka_jars import find_java, kafka_jars

_SOURCE = Path(__file__).with_name("KafkaAssignor.java")


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The median time of one assignment, the largest load, the sum of squared loads, and queues that moved."""

    milliseconds: float
    largest: int
    squares: int
    moves: int


def run_kafka_assignor(reads: Bools, queues_each: int, leaver: int, rounds: int) -> dict[str, PeerResult]:
    """Return the results of the first assignment and of the one after `leaver` has left."""
    topics, members = reads.shape
    lines = [f"{topics} {members} {queues_each} {leaver} {rounds}"]
    lines += ["".join("01"[bool(cell)] for cell in row) for row in reads]
    finished = subprocess.run(
        [str(find_java()), "-Xmx2g", "-cp", f"{kafka_jars()}/*", str(_SOURCE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in finished.stdout.splitlines() if line.startswith(("first", "leave"))]
    return {
        event: PeerResult(float(spent), int(largest), int(squares), int(moves))
        for event, spent, largest, squares, moves in rows
    }
