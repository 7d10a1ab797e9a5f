"""The pipeline of `flyball demo`."""

from __future__ import annotations

from flyball.app.config import DemoSource, RunConfig
from flyball.demo.events import COLUMNS
from flyball.pipeline.config.monitors import MonitorConfig
from flyball.pipeline.config.pipeline import Filter, PipelineConfig, Rule
from flyball.pipeline.tier1.steps.cleanse import Assign

FILTER_AND_RULE = """
[[pipeline.tier1]]
keep = "NOT (kind = 'performance' AND in_subnet(ip, '92.126.10.0/24'))"

[[pipeline.rules]]
name = "busy-hosts"
where = "kind = 'performance' AND in_subnet(ip, '92.126.11.0/24')"
column = "load"
above = 2
"""
"""The filter and the rule of the demo as part of a config file."""


def demo_config(seed: int, events: int | None) -> RunConfig:
    """A filter, a monitor and one rule over generated events; `events` None: no end."""
    return RunConfig(
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
