"""The synchronous reader of SQLite logs: any process, also a forked or unpickled one."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
from pathlib import Path

import pytest

from flyball.brokers import Message, connect
from flyball.brokers.log_reader import open_log_reader
from flyball.brokers.port import NoSuchChannel, Unreachable, Unsupported
from flyball.brokers.sqlite.log_reader import SqliteLogReader
from flyball.errors import InvalidValue


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'log.db'}"

    async def fill() -> None:
        async with await connect(url) as broker:
            await broker.declare("log", "log", partitions=2)
            await broker.declare("queue")
            sender = await broker.sender("log", producer="p")
            number = 0
            for size in (1, 7, 40, 3, 900, 49):
                batch = [Message(b"%d" % (number + at), key=b"k") for at in range(size)]
                await sender.send_batch(batch, sequence=number)
                number += size

    asyncio.run(fill())
    return url


def partition_used(reader: SqliteLogReader) -> int:
    return max(range(2), key=lambda partition: reader.bounds(partition)[1])


def numbers(reader: SqliteLogReader, start: int, stop: int) -> list[int]:
    found: list[int] = []
    for chunk in reader.read_bodies(partition_used(reader), start, stop):
        assert chunk.offsets is None
        assert chunk.first_offset == start + len(found)
        found += [int(body) for body in chunk.bodies]
    return found


def opened(url: str) -> SqliteLogReader:
    reader = open_log_reader(url, "log")
    assert isinstance(reader, SqliteLogReader)
    return reader


def test_any_range_is_exact(url: str) -> None:
    with opened(url) as reader:
        assert reader.partitions() == 2
        assert reader.bounds(partition_used(reader)) == (0, 1000)
        for start, stop in ((0, 1000), (0, 1), (1, 8), (5, 9), (47, 52), (500, 951), (999, 5000), (7, 7)):
            assert numbers(reader, start, stop) == list(range(start, min(stop, 1000)))


def test_it_survives_fork_and_pickle(url: str) -> None:
    with opened(url) as reader:
        assert numbers(reader, 0, 3) == [0, 1, 2]
        assert numbers(pickle.loads(pickle.dumps(reader)), 10, 13) == [10, 11, 12]
        context = multiprocessing.get_context("fork")
        answers: multiprocessing.Queue[list[int]] = context.Queue()
        child = context.Process(target=lambda: answers.put(numbers(reader, 990, 1000)))
        child.start()
        assert answers.get(timeout=60) == list(range(990, 1000))
        child.join(60)
        assert numbers(reader, 0, 3) == [0, 1, 2]


def test_a_reader_keeps_no_transaction_open_between_chunks(url: str, tmp_path: Path) -> None:
    import sqlite3

    with opened(url) as reader:
        chunks = reader.read_bodies(partition_used(reader), 0, 1000)
        next(chunks)
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        other.close()
        assert busy == 0


def test_errors_are_those_of_the_port(url: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchChannel, match="nope"):
        open_log_reader(url, "nope").partitions()
    with pytest.raises(Unsupported, match="queue"):
        open_log_reader(url, "queue").bounds(0)
    with pytest.raises(InvalidValue, match="not 2"):
        open_log_reader(url, "log").bounds(2)
    with pytest.raises(Unreachable, match="no file"):
        open_log_reader(f"sqlite:///{tmp_path / 'none.db'}", "log").bounds(0)
