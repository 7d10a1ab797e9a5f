"""A numbered sequence into a log: each event once and in order, across stops, kills and a broker that fails."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball.brokers import connect
from flyball.brokers.port import TooLarge
from flyball.publisher.feed import Feed, FeedProgress


def numbered(count: int) -> Feed:
    def events(first: int) -> Iterator[bytes]:
        return (b"%d" % number for number in range(first, count))

    return Feed("events", events, b"end")


async def bodies(url: str) -> list[bytes]:
    async with await connect(url) as broker:
        first, last = await broker.bounds("events", 0)
        return [record.message.body async for chunk in broker.read("events", 0, first, last) for record in chunk]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path / 'broker.db'}"


def test_goes_on_where_an_earlier_run_stopped_and_marks_the_end_once(url: str) -> None:
    async def main() -> None:
        last: FeedProgress | None = None
        for stop_after in (1500, 4000, 10_000, 10_000):
            stop = asyncio.Event()
            async for last in numbered(9000).run(url, stop):
                if last.events >= stop_after:
                    stop.set()
        assert last is not None
        assert last.events == 9000
        assert await bodies(url) == [*(b"%d" % number for number in range(9000)), b"end"]

    asyncio.run(main())


def test_a_longer_input_goes_on_and_ends_again(url: str) -> None:
    async def main() -> None:
        for count in (100, 150):
            async for _ in numbered(count).run(url, asyncio.Event()):
                pass
        found = await bodies(url)
        assert found == [*map(b"%d".__mod__, range(100)), b"end", *map(b"%d".__mod__, range(100, 150)), b"end"]

    asyncio.run(main())


def test_an_event_that_no_broker_takes_ends_the_feed_and_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        def events(first: int) -> Iterator[bytes]:
            return itertools.islice(iter([b"a", b"b", bytes(2000), b"d"]), first, None)

        feed = Feed("events", events, b"end", per_second=100.0)
        with pytest.raises(TooLarge, match="message feed-2 has 2000 bytes"):
            async for _ in feed.run(f"sqlite:///{tmp_path / 'b.db'}?max_body_bytes=1000", asyncio.Event()):
                pass

    asyncio.run(main())
