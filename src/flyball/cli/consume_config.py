"""flyball consume --config: run a consumer with a handler and a goal from a config file."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flyball.cli.output import note, print_json
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.consumer.consumer import Consumer


def run_config(path: Path, seconds: float | None, quiet: bool, json: bool, others: list[str]) -> None:
    """Consume until a signal comes, or for `seconds`."""
    from flyball.cli.load import Stop, figures_table
    from flyball.consumer.config import ConsumerFile
    from flyball.loops.toml import load_toml

    if others:
        raise InvalidValue(f"--config excludes {', '.join(others)}; set them in the file")
    consumer = load_toml(path, ConsumerFile).make()

    async def main() -> None:
        stop = Stop()
        stop.after(seconds)
        running = asyncio.create_task(consumer.run())
        reporting = asyncio.create_task(_report(consumer, quiet))
        while not stop and not running.done():
            await stop.sleep(0.2)
        consumer.stop()
        reporting.cancel()
        await running

    asyncio.run(main())
    document = _figures(consumer)
    if json:
        print_json(document)
    else:
        typer.echo(figures_table(document))


async def _report(consumer: Consumer, quiet: bool) -> None:
    """Print rate and window every second, and the status when it changes."""
    last_status = ""
    while not quiet:
        await asyncio.sleep(1.0)
        stats = consumer.stats
        queues = f"  {len(stats.owned)} queues" if stats.owned else ""
        note(
            f"{stats.handed:>12,} handled  {stats.rate_per_s or 0.0:>10,.0f}/s  window {stats.window:.2f}{queues}"
        )
        if stats.status and stats.status != last_status:
            note(f"             {stats.status}")
        last_status = stats.status


def _figures(consumer: Consumer) -> dict[str, Any]:
    rates = [step.measurement for step in consumer.steps() if isinstance(step.measurement, float)]
    mean = sum(rates) / len(rates) if rates else None
    return {
        **asdict(consumer.stats),
        "samples": len(rates),
        "mean_rate_per_s": None if mean is None else round(mean, 1),
    }
