"""flyball demo: the whole pipeline on generated events, with nothing to set up."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, note


def command(
    events: Annotated[
        int | None, typer.Option(min=0, help="Number of events to generate, malformed ones included.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Generate events for that many seconds.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated events.")] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep logs and checkpoints, and print their folder.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the whole pipeline on generated events: publisher, embedded broker, Spark lane, rule, alerts."""
    from flyball.app.run import run
    from flyball.cli.run import refuse_loss, show
    from flyball.demo.config import demo_config

    if events is None and seconds is None:
        events = 30_000
    config = demo_config(seed, events)
    note("DNS queries and host measurements → publisher → embedded broker → Spark: tier 1 → rule → alerts")
    note("beside it a consumer reads the events, first at 200 a second, then at 500, and CPU load takes one core")
    note("a group of three consumers shares the queues of a topic, loses one of them and has it back")
    note("tier 1 drops measurements of 92.126.10.0/24; a 10 s window with a load above 2 in 92.126.11.0/24 alerts")
    note("a monitor learns which load is unusual, the highest 5 %, and tier 1 marks such measurements")
    scratch = Path(tempfile.mkdtemp(prefix="flyball-demo-"))
    try:
        outcome = asyncio.run(run(config, scratch, note, feed_for_s=seconds, with_demo_load=True))
        show(outcome, json=json)
        refuse_loss(outcome)
    finally:
        if keep:
            note(f"logs and checkpoints are in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
