"""The slow network and the publishers of a consumer under test, in a process of their own.

    python -m flyball.lab.rigs.consumer.network AMQP_PORT

Commands come as JSON lines on standard input, each is answered by a line: {"delay_s": 0.0067} sets the one-way
delay of the proxy, {"queue": NAME} declares an empty queue and publishes to it from now on, {"fill": N} sends N
messages to it, {"publishers": 25, "gap_s": 0.01} starts 25 publishers, each of which sends every gap_s ± 10 %
(the prefetch paper: 25 and 10 ms; 0 stops publishing). They have a process of their own, so that they take no
interpreter time from the consumer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

from flyball.brokers import connect
from flyball.brokers.port import Broker, Message, Sender
from flyball.servers.ports import LOOPBACK
from flyball.servers.proxy import FaultProxy
from flyball.twin.workload import Normal

BODY = b"x" * 256  # message size of the prefetch paper
_TICK_S = 0.005
_BATCH = 1000


class Network:
    """Carries the commands out."""

    def __init__(self, broker: Broker, proxy: FaultProxy) -> None:
        self._broker, self._proxy = broker, proxy
        self._sender: Sender | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._stopping = False

    async def execute(self, command: dict[str, Any]) -> None:
        if "delay_s" in command:
            self._proxy.set_delay(command["delay_s"])
        if "queue" in command:
            await self._stop_publishers()
            await self._broker.declare(command["queue"], durable=False)
            self._sender = await self._broker.sender(command["queue"])
        if "fill" in command:
            assert self._sender is not None
            for start in range(0, command["fill"], _BATCH):
                count = min(_BATCH, command["fill"] - start)
                await self._sender.send_batch([Message(BODY) for _ in range(count)])
        if "publishers" in command:
            await self._stop_publishers()
            if command["publishers"]:
                gap_s = command["gap_s"]
                self._stopping = False
                workload = Normal(gap_s, gap_s / 10.0, command["publishers"])
                self._publishing = asyncio.create_task(self._publish(workload, command.get("seed", 1)))

    async def _stop_publishers(self) -> None:
        """Let the publishers end by themselves: a cancelled batch would leave its sender waiting."""
        if self._publishing is not None:
            self._stopping = True
            await self._publishing
            self._publishing = None

    async def _publish(self, workload: Normal, seed: int) -> None:
        """Send the arrivals of the last few milliseconds as one batch."""
        assert self._sender is not None
        began_s, due = time.monotonic(), 0
        for at_s in workload.arrivals(np.random.default_rng(seed)):
            if self._stopping:
                return
            wait_s = began_s + at_s - time.monotonic()
            if wait_s > 0:
                if due:
                    await self._sender.send_batch([Message(BODY, event_time_s=time.time()) for _ in range(due)])
                due = 0
                await asyncio.sleep(max(wait_s, _TICK_S))
            due += 1


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with await connect(f"amqp://guest:guest@{LOOPBACK}:{port}/") as broker:
        with FaultProxy(port) as proxy:
            network = Network(broker, proxy)
            _answer(port=proxy.port)
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                await network.execute(json.loads(line))
                _answer()


def _answer(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
