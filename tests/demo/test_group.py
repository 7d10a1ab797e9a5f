"""The demo's group loses and regains a member, and loses no message."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flyball.demo.group import run_demo_group


def test_the_queues_of_a_lost_member_are_read_and_returned(tmp_path: Path) -> None:
    said: list[str] = []
    found = asyncio.run(run_demo_group(tmp_path / "group", asyncio.Event(), said.append))
    assert found.complete
    assert found.sent > 0
    assert found.lost == 0
    assert found.moves == found.fewest_moves > 0
    assert [line.split(" (")[0] for line in said] == [
        "a group shares 6 queues",
        "the others read the queues of m2",
        "the group shares its queues again",
    ]


def test_it_ends_early_with_the_input_of_the_demo(tmp_path: Path) -> None:
    async def work() -> None:
        ended = asyncio.Event()
        ended.set()
        found = await run_demo_group(tmp_path / "group", ended, lambda _: None)
        assert not found.complete
        assert found.lost == 0

    asyncio.run(work())
