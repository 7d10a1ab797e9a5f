"""What a loop costs: 10,000 PI loops at 1 Hz in one process, on the wall clock, with default settings."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from flyball import Loop
from flyball.control.controllers.pi import Pi
from flyball.lab.bench import BenchContext, Row
from flyball.loops.runner import Runner

LOOPS = 10_000


def run(context: BenchContext) -> Iterator[Row]:
    seconds, rounds = (5, 1) if context.quick else (10, 3)
    cores = [asyncio.run(_cores(seconds)) for _ in range(rounds)]
    context.note(f"  {LOOPS} loops, {seconds} s each: " + ", ".join(f"{used:.3f}" for used in cores) + " cores")
    yield context.row("10,000 PI loops", statistics.median(cores), "cores", goal=0.5, better="lower")


async def _cores(seconds: int) -> float:
    """CPU seconds of this process per second of wall time, from the second tick on."""
    plants = [_CountingPlant() for _ in range(LOOPS)]
    runner = Runner([_loop(f"loop {number}", plant) for number, plant in enumerate(plants)])
    running = asyncio.create_task(runner.run())
    await asyncio.sleep(1.5)  # between two ticks
    before = sum(plant.moves for plant in plants)
    cpu, wall = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    used = (time.process_time() - cpu) / (time.monotonic() - wall)
    moves = sum(plant.moves for plant in plants) - before
    runner.stop()
    await running
    if moves < LOOPS * (seconds - 1):
        raise RuntimeError(f"{moves} moves in {seconds} s, but {LOOPS * seconds} were due: the loops fell behind")
    return used


class _CountingPlant:
    """The plant of the prefetch paper: cheap, so that the loops are measured and not the plant."""

    __slots__ = ("command", "moves", "output")

    def __init__(self) -> None:
        self.output, self.command, self.moves = 0.0, 1.0, 0

    def measure(self) -> float:
        self.output = 0.26 * self.output + 59.73 * self.command
        return self.output

    def apply(self, command: float) -> None:
        self.command = command
        self.moves += 1


def _loop(name: str, plant: _CountingPlant) -> Loop:
    return Loop(
        name,
        sensor=plant.measure,
        actuator=plant.apply,
        controller=Pi(kp=-0.0016, ki=0.0060),
        goal=400.0,
        limits=(1.0, 360.0),
        mode="on",
    )
