"""flyball demo: the whole line on generated events, with nothing to set up."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.output import JsonOption, note


def command(
    events: Annotated[int | None, typer.Option(min=0, help="Events to generate, malformed ones included.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Generate for that long.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other events.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep logs and checkpoints, and say where.")] = False,
    json: JsonOption = False,
) -> None:
    """Run the whole line on generated events: publisher, embedded broker, Spark lane, rule, alerts."""
    from flyball.app.run import DemoSource, LineConfig, run_line
    from flyball.cli.run import show
    from flyball.demo.events import COLUMNS
    from flyball.pipeline.config.monitors import MonitorConfig
    from flyball.pipeline.config.pipeline import Filter, PipelineConfig, Rule
    from flyball.pipeline.tier1.steps.cleanse import Assign

    if events is None and seconds is None:
        events = 30_000
    config = LineConfig(
        source=DemoSource(kind="demo", seed=seed, events=events),
        pipeline=PipelineConfig(
            columns=COLUMNS,
            event_time="event_time",
            monitors=(
                MonitorConfig(
                    name="high_load", column="load", quantile=0.95, where="kind = 'performance'", initial=2.0
                ),
            ),
            tier1=(
                Filter(keep="NOT (kind = 'performance' AND in_subnet(ip, '92.126.10.0/24'))"),
                Assign(set={"unusual": "load > monitor.high_load"}),
            ),
            rules=(
                Rule(
                    name="busy-hosts",
                    where="kind = 'performance' AND in_subnet(ip, '92.126.11.0/24')",
                    aggregate="max",
                    column="load",
                    window_s=10,
                    above=2,
                ),
            ),
        ),
    )
    note("DNS queries and host measurements → publisher → embedded broker → Spark: tier 1 → rule → alerts")
    note("beside it a consumer reads the events, first at 200 a second, then at 500, and a hog takes a core")
    note("tier 1 drops measurements of 92.126.10.0/24; a 10 s window with a load above 2 in 92.126.11.0/24 alerts")
    note("a monitor learns which load is unusual, the highest 5 %, and tier 1 marks such measurements")
    scratch = Path(tempfile.mkdtemp(prefix="flyball-demo-"))
    try:
        show(asyncio.run(run_line(config, scratch, seconds, company=True)), json=json)
    finally:
        if keep:
            note(f"kept in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
