"""What runs beside the pipeline in the demo: CPU load on one core, and a consumer whose goal changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flyball.demo.consumer import ConsumerSummary, consume_at_goals
from flyball.demo.cpu_load import start_cpu_load

_DELAY_S, _LOAD_S = 2.0, 5.0


async def run_demo_load(
    url: str, channel: str, input_ended: asyncio.Event, say: Callable[[str], None]
) -> ConsumerSummary:
    """Load one core for a while and consume `channel` at changing goals until `input_ended` is set."""
    loading = asyncio.create_task(_load_one_core(say))
    consuming = asyncio.create_task(consume_at_goals(url, channel, input_ended, say))
    await input_ended.wait()
    loading.cancel()
    await asyncio.wait([loading])
    return await consuming


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
