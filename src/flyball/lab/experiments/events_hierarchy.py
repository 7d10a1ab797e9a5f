"""S5: tiers on top of each other, cities → states → country: each level takes what it can, nothing is dropped.

S5 draws the hierarchy (fig. 2) and measures none. Six cities feed two states, which feed one country. Lanes of the
twin, every one with the pipeline's own flow control; what a level lets through is the input of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneWorld, held
from flyball.pipeline.policy import FlowControl
from flyball.twin.lanes import LaneModel, LaneTwin, percentile_s

MB = 1e6
FLOW = FlowControl(limit_bytes=64_000_000, reference_bytes=40_000_000)
MODEL = LaneModel()
CITIES, STATES = 6, 2
CITY_RATE = 60_000.0
PASSED = 0.25
"""part of its events that a level lets through to the next"""
HOG, HOG_AT_S, HOG_GONE_S, END_S = 0.85, 60.0, 120.0, 240.0
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
        worlds = [world for country in countries for world in country.levels[level]]
        rates = [sum(w.lanes[0].events for w in country.levels[level]) / END_S for country in countries]
        waiting = [max(max(one) for one in world.trace.backlog) / 1e3 for world in worlds]
        dropped = sum(world.lanes[0].dropped_bytes for world in worlds)
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
        axis.axvspan(HOG_AT_S, HOG_GONE_S, color=MEASURED, alpha=0.08, linewidth=0)
    axes[0].set_ylabel("waiting, 1000 events")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("free, MB")
    axes[1].set_xlabel("time in s")
    slow = [held(country.levels["country"][0].receipts, HOG_AT_S - 20.0, HOG_AT_S) for country in countries]
    data["country_free_before"] = [list(span) for span in slow]
    return Report(
        title="S5: a hierarchy",
        body=[
            f"{CITIES} cities with {CITY_RATE:,.0f} events/s each; of them {100 * PASSED:.0f} % go on to a state, "
            f"of those, {100 * PASSED:.0f} % to the country. A hog takes {100 * HOG:.0f} % of the country's core "
            f"from {HOG_AT_S:.0f} to {HOG_GONE_S:.0f} s. {len(seeds)} seeds, ± is the 95 % interval.",
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
            Picture("runs", "One of each level: input that waits and free space; grey: the hog", figure),
            "Each level filters near the origin, so that the next has a quarter of the work: one country keeps up "
            "with six cities. While the country is slow its input waits in front of it, states and cities do not "
            "notice, and afterwards it catches up. No level drops anything.",
        ],
        data={"levels": data, "seeds": len(seeds)},
    )


class _Country:
    """Worlds of one lane each in one virtual time, chained from level to level."""

    def __init__(self, seed: int) -> None:
        self._top = LaneWorld([MODEL], seed, flow=FLOW)
        shared = self._top.environment
        states = [LaneWorld([MODEL], seed * 100 + n, flow=FLOW, environment=shared) for n in range(STATES)]
        cities = [LaneWorld([MODEL], seed * 1000 + n, flow=FLOW, environment=shared) for n in range(CITIES)]
        self.levels = {"city": cities, "state": states, "country": [self._top]}
        for number, city in enumerate(cities):
            city.rate = CITY_RATE
            city.lanes[0].then = _passing(states[number % STATES].lanes[0])
        for state in states:
            state.lanes[0].then = _passing(self._top.lanes[0])

    def run(self) -> None:
        for hog, until_s in ((0.0, HOG_AT_S), (HOG, HOG_GONE_S), (0.0, END_S)):
            self._top.lanes[0].hog(hog)
            self._top.run(until_s - self._top.environment.now)


def _passing(upper: LaneTwin) -> Any:
    owed = [0.0]

    def then(events: Sequence[tuple[float, int]]) -> None:
        for born_s, count in events:
            owed[0] += PASSED * count
            upper.offer(int(owed[0]), born_s)
            owed[0] -= int(owed[0])

    return then


def _p99(worlds: Sequence[LaneWorld]) -> float:
    """Outside the hog and its aftermath."""
    delays = [one for w in worlds for one in w.lanes[0].served.delays_s if 20.0 <= one[0] < HOG_AT_S]
    return percentile_s(delays, 0.99)
