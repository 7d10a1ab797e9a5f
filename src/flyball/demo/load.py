"""What runs beside the pipeline in the demo: CPU load, a consumer whose goal changes, and a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flyball.demo.consumer import ConsumerSummary, consume_at_goals
from flyball.demo.cpu_load import start_cpu_load
from flyball.demo.group import GroupSummary, run_demo_group

_DELAY_S, _LOAD_S = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class DemoSummary:
    consumer: ConsumerSummary
    group: GroupSummary


async def run_demo_load(
    url: str, channel: str, folder: Path, input_ended: asyncio.Event, say: Callable[[str], None]
) -> DemoSummary:
    """Load one core for a while, consume `channel` at changing goals until `input_ended` is set, run a group."""
    grouping = asyncio.create_task(run_demo_group(folder / "group", input_ended, say))
    loading = asyncio.create_task(_load_one_core(say))
    consuming = asyncio.create_task(consume_at_goals(url, channel, input_ended, say))
    await input_ended.wait()
    loading.cancel()
    await asyncio.wait([loading])
    await asyncio.wait([consuming, grouping])
    return DemoSummary(consuming.result(), grouping.result())


async def _load_one_core(say: Callable[[str], None]) -> None:
    """Use up one core for a while, as another program on the machine would."""
    await asyncio.sleep(_DELAY_S)
    say(f"CPU load on one core for {_LOAD_S:g} s: expect slower batches, no lost events")
    process = start_cpu_load(_LOAD_S)
    try:
        while process.poll() is None:
            await asyncio.sleep(0.1)
        say("CPU load ended")
    finally:
        process.kill()
        process.wait()
