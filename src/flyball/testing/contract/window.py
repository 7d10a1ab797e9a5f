"""At most `window` messages are in flight, also when the window changes."""

from __future__ import annotations

import asyncio
import random

from flyball.brokers import Broker, Delivery
from flyball.testing.contract.base import ContractBase
from flyball.testing.contract.messages import ids, numbered


class Window(ContractBase):
    def test_window_changes_take_effect_and_are_never_exceeded(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                await self.send(broker, channel, numbered(60))
                receiver = await self.open(broker, kind, channel, window=5)
                got = await self.collect(receiver, 5, ack=False)
                assert len(got) == receiver.in_flight == 5
                await self.expect_nothing(receiver)
                receiver.set_window(8)
                got += await self.collect(receiver, 3, ack=False)
                await self.expect_nothing(receiver)
                assert len(got) == receiver.in_flight == 8
                receiver.set_window(3)  # returns nothing to the broker …
                assert receiver.window == 3
                assert receiver.in_flight == 8
                await receiver.ack(*got[:5])
                await self.expect_nothing(receiver)  # … and delivers nothing until slots are free
                await receiver.ack(*got[5:7])
                got += await self.collect(receiver, 2, ack=False)
                await self.expect_nothing(receiver)
                assert receiver.in_flight == 3
                receiver.set_window(0)
                await receiver.ack(*got)
                await self.expect_nothing(receiver)
                receiver.set_window(50)
                assert len(await self.collect(receiver, 50)) == 50
                assert len(set(ids(got))) == 10
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_raising_the_window_wakes_a_waiting_receiver(self) -> None:
        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                await self.send(broker, channel, numbered(3))
                receiver = await self.open(broker, kind, channel, window=0)
                waiting = asyncio.create_task(receiver.receive(10, timeout_s=self.arrives_within_s))
                await asyncio.sleep(self.quiet_s)
                assert not waiting.done()
                receiver.set_window(2)
                got = await waiting
                assert 1 <= len(got) <= 2
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)

    def test_random_windows_are_never_exceeded(self) -> None:
        seed = 20
        rng = random.Random(seed)

        async def scenario(broker: Broker) -> None:
            for kind in self.kinds(broker):
                channel = await self.channel(broker, kind)
                sent = numbered(200)
                await self.send(broker, channel, sent)
                receiver = await self.open(broker, kind, channel, window=1)
                in_flight: list[Delivery] = []
                received: list[Delivery] = []
                while len(received) < 200:
                    window = rng.randrange(1, 20)
                    receiver.set_window(window)
                    before = len(in_flight)
                    if before < window:
                        got = await receiver.receive(100, timeout_s=self.arrives_within_s)
                        assert got, f"nothing came after {len(received)} of 200 (seed {seed})"
                        in_flight += got
                        received += got
                    assert receiver.in_flight == len(in_flight) <= max(window, before), f"seed {seed}"
                    done = [in_flight.pop(0) for _ in range(rng.randrange(len(in_flight) + 1))]
                    await receiver.ack(*done)
                assert ids(received) == ids(sent)
                await receiver.close()
                await broker.delete(channel)

        self.run(scenario)
