"""A real consumer on a real RabbitMQ behind a slow network, and what one run of it was like.

The judge is not the judged: messages are counted in the handler, at the loop's own samples. The goal of a sample
is the one that the loop knew when the sample began.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from flyball.consumer.consumer import Consumer
from flyball.consumer.policy import Goal, Regulator
from flyball.control.models import Array
from flyball.control.record import LoopRecord
from flyball.servers.ports import LOOPBACK
from flyball.servers.rabbitmq import RabbitMqNode

ONE_WAY_S = 0.0067
HANDLING_S = 0.001


class Rig:
    """A RabbitMQ node, the delay proxy and the publishers; a context manager."""

    def __init__(self, *, delay_s: float = ONE_WAY_S) -> None:
        self._node = RabbitMqNode(plugins=())
        self._world: subprocess.Popen[str] | None = None
        self._delay_s = delay_s
        self._port = 0
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        """Through the proxy."""
        return f"amqp://guest:guest@{LOOPBACK}:{self._port}/"

    @property
    def direct_url(self) -> str:
        return self._node.amqp_url

    def tell(self, **command: Any) -> None:
        """See `consumer_world`."""
        assert self._world is not None
        assert self._world.stdin is not None
        self._world.stdin.write(json.dumps(command) + "\n")
        self._world.stdin.flush()
        self._answer()

    async def tell_soon(self, **command: Any) -> None:
        """The same while a consumer runs in this thread's event loop."""
        await asyncio.to_thread(self.tell, **command)

    def queue(self, *, fill: int = 0) -> str:
        """A new queue, which the publishers fill from now on."""
        name = f"rig-{next(self._numbers)}"
        self.tell(queue=name, fill=fill, delay_s=self._delay_s)
        return name

    def _answer(self) -> dict[str, Any]:
        assert self._world is not None
        assert self._world.stdout is not None
        line = self._world.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with proxy and publishers ended with code {self._world.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> Self:
        self._node.start()
        try:
            self._world = subprocess.Popen(
                [sys.executable, "-m", "flyball.lab.rigs.consumer.network", str(self._node.ports.amqp)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._port = int(self._answer()["port"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._world is not None:
            assert self._world.stdin is not None
            self._world.stdin.close()
            try:
                self._world.wait(10.0)
            except subprocess.TimeoutExpired:
                self._world.kill()
                self._world.wait()
            self._world = None
        self._node.stop()


@dataclass(frozen=True)
class LiveRun:
    """Arrays over the samples: `rate[k]` was counted while `goal[k]` was known and `command[k]` in force."""

    time: Array
    goal: Array
    rate: Array
    command: Array
    records: tuple[LoopRecord, ...] = field(repr=False, default=())


class _Judge:
    """A telemetry sink that notes, at each of the loop's samples, how many messages the handler has seen."""

    waits_for_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        self.handed = 0
        self.dropped = 0
        self.records: list[LoopRecord] = []
        self.counts: list[tuple[float, int]] = []

    def write(self, records: Sequence[LoopRecord]) -> None:
        for record in records:
            self.records.append(record)
            self.counts.append((time.monotonic(), self.handed))

    def flush(self) -> None: ...

    def run(self) -> LiveRun:
        times, handed = (np.array(column, dtype=float) for column in zip(*self.counts, strict=True))
        known = self.records[:-1]
        goal = np.array([record.setpoint for record in known], dtype=float)
        goal[0] = goal[
            1
        ]  # at its first sample the loop has nothing to compare with yet; the goal stood from the start
        return LiveRun(
            time=times[1:] - times[0],
            goal=goal,
            rate=np.diff(handed) / np.diff(times),
            command=np.array(
                [record.applied if record.command is None else record.command for record in known], dtype=float
            ),
            records=tuple(self.records[1:]),
        )


def run_live(
    rig: Rig,
    queue: str,
    goal: str | Goal,
    *,
    samples: int,
    controller: Regulator = None,
    during: Callable[[int, Consumer], Awaitable[None]] | None = None,
    handling_s: Callable[[int], float] | float = HANDLING_S,
    concurrency: int | None = None,
    **options: Any,
) -> LiveRun:
    """Run a consumer for so many samples.

    `during(k, consumer)` is called once after sample k, `handling_s` may depend on it.
    """
    judge = _Judge()

    async def handle(_message: Any) -> None:
        judge.handed += 1
        await asyncio.sleep(handling_s(len(judge.counts)) if callable(handling_s) else handling_s)

    async def main() -> None:
        async with Consumer(
            rig.url,
            queue=queue,
            handler=handle,
            goal=goal,
            controller=controller,
            concurrency=concurrency,
            telemetry=[judge],
            **options,
        ) as consumer:
            last_sample = -1
            while len(judge.counts) <= samples:
                await asyncio.sleep(0.02)
                if during is not None and len(judge.counts) > last_sample + 1:
                    last_sample = len(judge.counts) - 1
                    await during(last_sample, consumer)

    asyncio.run(main())
    return judge.run()
