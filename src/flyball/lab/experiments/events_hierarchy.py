"""Event processing: a hierarchy of tiers, cities → states → country, drops nothing (Xu et al., fig. 2).

The event-processing paper (docs/references.md) draws the hierarchy and measures none. Six cities feed two states,
which feed one country. Lanes of the twin, each with the pipeline's own flow control; what passes the filter of a
level is the input of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneSimulation, free_space_range
from flyball.pipeline.policy import FlowControl
from flyball.twin.lanes import LaneModel, LaneTwin, percentile_s

MB = 1e6
FLOW = FlowControl(limit_bytes=64_000_000, reference_bytes=40_000_000)
MODEL = LaneModel()
CITIES, STATES = 6, 2
CITY_RATE = 60_000.0
PASSED = 0.25
"""share of events that pass the filter of a level and go on to the next"""
CPU_LOAD, LOAD_BEGINS_S, LOAD_ENDS_S, END_S = 0.85, 60.0, 120.0, 240.0
LEVELS = ("city", "state", "country")
_COLOURS = dict(zip(LEVELS, (SHADE, ONE_STEP, FREE_RUN), strict=True))


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 8))
    countries = [_Country(seed) for seed in seeds]
    for country in countries:
        country.run()
    figure, axes = new_figure(rows=2, row_height_in=2.2)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for level in LEVELS:
        simulations = [simulation for country in countries for simulation in country.levels[level]]
        rates = [sum(w.lanes[0].events for w in country.levels[level]) / END_S for country in countries]
        waiting = [max(max(one) for one in simulation.trace.backlog) / 1e3 for simulation in simulations]
        dropped = sum(simulation.lanes[0].dropped_bytes for simulation in simulations)
        delays = [_p99(country.levels[level]) for country in countries]
        rows.append(
            (
                level,
                len(countries[0].levels[level]),
                interval(rates).text(1e-3, 0),
                f"{max(waiting):.0f}",
                interval(delays).text(1, 2),
                dropped,
            )
        )
        data[level] = {
            "events_per_s": interval(rates).mean,
            "most_waiting": max(waiting) * 1e3,
            "p99_s": interval(delays).mean,
            "dropped_bytes": dropped,
        }
        context.note(f"{level}: {interval(rates).mean:,.0f} events/s, p99 {interval(delays).text(1, 2)} s")
        trace = countries[0].levels[level][0].trace
        axes[0].plot(trace.times_s, [max(one) / 1e3 for one in trace.backlog], color=_COLOURS[level], label=level)
        axes[1].plot(trace.times_s, [free[0] / MB for free in trace.free_bytes], color=_COLOURS[level])
    for axis in axes:
        axis.axvspan(LOAD_BEGINS_S, LOAD_ENDS_S, color=MEASURED, alpha=0.08, linewidth=0)
    axes[0].set_ylabel("waiting, 1000 events")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("free, MB")
    axes[1].set_xlabel("time in s")
    slow = [
        free_space_range(country.levels["country"][0].records, LOAD_BEGINS_S - 20.0, LOAD_BEGINS_S)
        for country in countries
    ]
    data["country_free_before"] = [list(span) for span in slow]
    return Report(
        title="A hierarchy of tiers: cities, states, country (Xu et al.)",
        body=[
            f"{CITIES} cities with {CITY_RATE:,.0f} events/s each; of them {100 * PASSED:.0f} % go on to a state, "
            f"of those, {100 * PASSED:.0f} % to the country. A CPU load takes {100 * CPU_LOAD:.0f} % of its core "
            f"from {LOAD_BEGINS_S:.0f} to {LOAD_ENDS_S:.0f} s. {len(seeds)} seeds, ± is the 95 % interval.",
            Table(
                (
                    "level",
                    "of them",
                    "1000 events/s together",
                    "most waiting at one, 1000",
                    "p99 since birth, s",
                    "dropped, bytes",
                ),
                rows,
            ),
            Picture("runs", "One of each level: input that waits and free space; grey: under CPU load", figure),
            "Each level filters near the origin, so that the next has a quarter of the work: one country keeps up "
            "with six cities. While the country is slow its input waits in front of it, states and cities are not "
            "affected, and afterwards it catches up. No level drops anything.",
        ],
        data={"levels": data, "seeds": len(seeds)},
    )


class _Country:
    """Simulations of one lane each in one virtual time, chained from level to level."""

    def __init__(self, seed: int) -> None:
        self._top = LaneSimulation([MODEL], seed, flow=FLOW)
        shared = self._top.environment
        states = [LaneSimulation([MODEL], seed * 100 + n, flow=FLOW, environment=shared) for n in range(STATES)]
        cities = [LaneSimulation([MODEL], seed * 1000 + n, flow=FLOW, environment=shared) for n in range(CITIES)]
        self.levels = {"city": cities, "state": states, "country": [self._top]}
        for number, city in enumerate(cities):
            city.rate = CITY_RATE
            city.lanes[0].then = _pass_on(states[number % STATES].lanes[0])
        for state in states:
            state.lanes[0].then = _pass_on(self._top.lanes[0])

    def run(self) -> None:
        for cpu_load, until_s in ((0.0, LOAD_BEGINS_S), (CPU_LOAD, LOAD_ENDS_S), (0.0, END_S)):
            self._top.lanes[0].set_cpu_load(cpu_load)
            self._top.run(until_s - self._top.environment.now)


def _pass_on(upper: LaneTwin) -> Any:
    remainder = [0.0]

    def then(events: Sequence[tuple[float, int]]) -> None:
        for born_s, count in events:
            remainder[0] += PASSED * count
            upper.offer(int(remainder[0]), born_s)
            remainder[0] -= int(remainder[0])

    return then


def _p99(simulations: Sequence[LaneSimulation]) -> float:
    """99th percentile of the delays before the CPU load."""
    delays = [one for w in simulations for one in w.lanes[0].served.delays_s if 20.0 <= one[0] < LOAD_BEGINS_S]
    return percentile_s(delays, 0.99)
