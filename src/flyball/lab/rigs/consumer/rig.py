"""A real consumer on a real RabbitMQ behind a slow network, and the record of one run.

The figures do not come from the loop under test: messages are counted in the handler, at the loop's own samples.
The goal of a sample is the one that was set when the sample began.
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
from flyball.consumer.policy.controller import ControllerOption
from flyball.consumer.policy.goals import Goal
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
        self._network: subprocess.Popen[str] | None = None
        self._delay_s = delay_s
        self._port = 0
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        """URL of the node through the proxy."""
        return f"amqp://guest:guest@{LOOPBACK}:{self._port}/"

    @property
    def direct_url(self) -> str:
        return self._node.amqp_url

    def configure(self, **command: Any) -> None:
        """Send a command to the network process (see `network`) and wait for its reply."""
        assert self._network is not None
        assert self._network.stdin is not None
        self._network.stdin.write(json.dumps(command) + "\n")
        self._network.stdin.flush()
        self._answer()

    async def configure_async(self, **command: Any) -> None:
        """Like `configure`, while a consumer runs in this thread's event loop."""
        await asyncio.to_thread(self.configure, **command)

    def queue(self, *, fill: int = 0) -> str:
        """Declare a new queue, to which the publishers send from now on, with `fill` messages in it."""
        name = f"rig-{next(self._numbers)}"
        self.configure(queue=name, fill=fill, delay_s=self._delay_s)
        return name

    def _answer(self) -> dict[str, Any]:
        assert self._network is not None
        assert self._network.stdout is not None
        line = self._network.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with proxy and publishers ended with code {self._network.wait()}")
        return dict(json.loads(line))

    def __enter__(self) -> Self:
        self._node.start()
        try:
            self._network = subprocess.Popen(
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
        if self._network is not None:
            assert self._network.stdin is not None
            self._network.stdin.close()
            try:
                self._network.wait(10.0)
            except subprocess.TimeoutExpired:
                self._network.kill()
                self._network.wait()
            self._network = None
        self._node.stop()


@dataclass(frozen=True)
class LiveRun:
    """Arrays over the samples: `rate[k]` was counted while `goal[k]` was known and `command[k]` in force."""

    time: Array
    goal: Array
    rate: Array
    command: Array
    records: tuple[LoopRecord, ...] = field(repr=False, default=())


class _Recorder:
    """A telemetry sink that counts, at each of the loop's samples, the messages handed to the handler."""

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
    controller: ControllerOption = None,
    during: Callable[[int, Consumer], Awaitable[None]] | None = None,
    handling_s: Callable[[int], float] | float = HANDLING_S,
    concurrency: int | None = None,
    **options: Any,
) -> LiveRun:
    """Run a consumer for `samples` samples.

    `during(k, consumer)` is called once after sample k, `handling_s` may depend on it.
    """
    recorder = _Recorder()

    async def handle(_message: Any) -> None:
        recorder.handed += 1
        await asyncio.sleep(handling_s(len(recorder.counts)) if callable(handling_s) else handling_s)

    async def main() -> None:
        async with Consumer(
            rig.url,
            queue=queue,
            handler=handle,
            goal=goal,
            controller=controller,
            concurrency=concurrency,
            telemetry=[recorder],
            **options,
        ) as consumer:
            last_sample = -1
            while len(recorder.counts) <= samples:
                await asyncio.sleep(0.02)
                if during is not None and len(recorder.counts) > last_sample + 1:
                    last_sample = len(recorder.counts) - 1
                    await during(last_sample, consumer)

    asyncio.run(main())
    return recorder.run()
