"""The window is never exceeded, on any broker, also while it changes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message
from flyball.control.step import Action, Sample, Value
from tests.consumer.queues import ChannelUnderTest, until


@dataclass(frozen=True)
class AnyWindow:
    """A controller that wants another window at each sample."""

    seed: int
    most: int

    def initial(self, command: Value) -> int:  # noqa: ARG002  it does not matter where it begins
        return 0

    def step(self, state: int, sample: Sample) -> tuple[int, Action]:  # noqa: ARG002
        return state + 1, Action(random.Random(f"{self.seed} {state}").uniform(0.3, self.most))


@pytest.mark.parametrize("seed", [4])
def test_the_window_is_never_exceeded_while_it_changes(channel: ChannelUnderTest, seed: int) -> None:
    """A narrower window takes nothing back: what runs is at most the widest one since the oldest of it began."""

    async def scenario() -> None:
        ids = await channel.send([b"%d" % number for number in range(400)])
        windows = [1]
        taken: dict[str, int] = {}  # id → the window under which it was handed out
        running: set[str] = set()
        seen: list[str] = []
        most: list[tuple[int, int]] = []

        async def handle(message: Message) -> None:
            running.add(message.id)
            most.append((len(running), max(windows[min(taken.get(id, 0) for id in running) :])))
            await asyncio.sleep(0.015)
            running.discard(message.id)
            seen.append(message.id)

        consumer = Consumer(
            channel.url,
            handler=handle,
            goal="rate=1000000",
            controller=AnyWindow(seed, 12),
            period_s=0.1,
            **channel.arguments,
        )
        async with consumer:
            receiver: Any = consumer._receiver
            set_window, receive = receiver.set_window, receiver.receive

            def noted(window: int) -> None:
                windows.append(window)
                set_window(window)

            async def received(*arguments: Any, **options: Any) -> Any:
                deliveries = await receive(*arguments, **options)
                taken.update((delivery.message.id, len(windows) - 1) for delivery in deliveries)
                return deliveries

            receiver.set_window, receiver.receive = noted, received
            await until(lambda: len(seen) == len(ids))
        assert Counter(seen) == Counter(ids)
        assert [pair for pair in most if pair[0] > pair[1]] == [], f"seed {seed}"
        assert max(windows) >= 10
        assert max(running for running, _ in most) >= 6, "it never was near: this test shows nothing"

    asyncio.run(scenario())
