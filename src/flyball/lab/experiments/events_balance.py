"""S5: a hog on one of two lanes: round robin and control (fig. 8), and control that forgot its delay (fig. 9).

Lanes of the twin with the batch times measured on Spark; shares are set each second by the pipeline's own
balancing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flyball.control.controllers.pi import Pi
from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.limits import clamp
from flyball.control.step import Sample
from flyball.control.verification.verify import verify
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure
from flyball.lab.rigs.pipeline.lanes import LaneWorld, Weigher, balancing, p99_s
from flyball.pipeline.policy import lane_plant
from flyball.twin.lanes import LaneModel

MODEL = LaneModel(queue_bytes=1e15)  # what is studied here is waiting, not room
HOG = 0.5
LOAD = 0.84
QUIET_S, HOG_S, AFTER_S = 60.0, 120.0, 60.0
_SENSITIVITY = 4.0
_POLES = [complex(0.046, 0.4), complex(0.046, -0.4)]


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (3 if context.quick else 10))
    hasty = _hasty_gains()
    cases: dict[str, tuple[Callable[[], Weigher | None], str]] = {
        "round robin": (lambda: None, FREE_RUN),
        "control": (lambda: balancing(2), ONE_STEP),
        "control designed without its delay": (lambda: _forgetful(hasty), SHADE),
    }
    figure, axes = new_figure(rows=2, row_height_in=2.6)
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for name, (weigher, colour) in cases.items():
        worlds = [_run(seed, weigher(), own=name == "control") for seed in seeds]
        quiet = interval([p99_s(world, QUIET_S / 3, QUIET_S) for world in worlds])
        early = interval([p99_s(world, QUIET_S, QUIET_S + HOG_S / 2) for world in worlds])
        late = interval([p99_s(world, QUIET_S + HOG_S / 2, QUIET_S + HOG_S) for world in worlds])
        swing = interval([_swing(world) for world in worlds])
        rows.append((name, quiet.text(1, 2), early.text(1, 2), late.text(1, 2), swing.text(1, 3)))
        data[name] = {
            "quiet_p99_s": quiet.mean,
            "hog_first_half_p99_s": early.mean,
            "hog_second_half_p99_s": late.mean,
            "share_std": swing.mean,
        }
        context.note(f"{name}: p99 {quiet.text(1, 2)} s, with the hog {early.text(1, 2)}, {late.text(1, 2)} s")
        axes[0].plot(*_mean_delays(worlds[0]), color=colour, label=name)
        axes[1].plot(worlds[0].trace.times_s, [weights[0] for weights in worlds[0].trace.weights], color=colour)
    for axis in axes:
        axis.axvspan(QUIET_S, QUIET_S + HOG_S, color=MEASURED, alpha=0.08, linewidth=0)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("delay, s")
    axes[0].legend(fontsize=8)
    axes[1].set_ylabel("share of lane 0")
    axes[1].set_xlabel("time in s")
    verdict = verify(lane_plant(_SENSITIVITY), hasty)
    return Report(
        title="S5: a hog on one of two lanes",
        body=[
            f"Two lanes share {_rate():,.0f} events/s, {100 * LOAD:.0f} % of what is left beside a hog that takes "
            f"{100 * HOG:.0f} % of lane 1's core for {HOG_S:.0f} s. Shares are decided each second and in force a "
            f"second later, as in S5. {len(seeds)} seeds, ± is the 95 % interval.",
            Table(
                (
                    "shares by",
                    "p99 before, s",
                    "first half of the hog, s",
                    "second half, s",
                    "share's std with the hog",
                ),
                rows,
            ),
            Picture("runs", "Mean delay of events and the share of lane 0; grey: the hog is there", figure),
            "Round robin gives the slow lane more than it can do, and delays grow as long as the hog stays "
            "(fig. 8, left). Control moves events to the other lane until both take equally long (fig. 8, right). "
            "They take longer than before, because the same work has less CPU: a batch takes T = c/(1−ρ).",
            f"S5's accident (fig. 9): gains for the same lanes, but designed as if a share acted at once "
            f"(poles {_POLES[0]:.3g} and its conjugate). With the delay of one interval that every share has, the "
            f"verdict is **{verdict.verdict}**, pole radius {verdict.radius:.2f}: {verdict.reason}. The shares "
            "swing for ever.",
        ],
        data={
            "cases": data,
            "load": LOAD,
            "forgotten_delay": {"verdict": verdict.verdict, "radius": verdict.radius},
        },
    )


def _rate() -> float:
    return LOAD * MODEL.capacity(2.0) * (2.0 - HOG)


def _run(seed: int, weigh: Weigher | None, *, own: bool) -> LaneWorld:
    world = LaneWorld([MODEL, MODEL], seed, weigh=weigh, spare_laggards=own, late=True)
    world.rate = _rate()
    for hog, seconds in ((0.0, QUIET_S), (HOG, HOG_S), (0.0, AFTER_S)):
        world.lanes[1].hog(hog)
        world.run(seconds)
    return world


def _hasty_gains() -> Gains:
    plant = replace(lane_plant(_SENSITIVITY), delay=0)
    gains = design(plant, "pi", poles=_POLES, allow_fragile=True).gains
    assert isinstance(gains, Gains)
    return gains


def _forgetful(gains: Gains) -> Weigher:
    controller = Pi(gains.kp, gains.ki)
    state = [controller.initial(0.0)]

    def weigh(
        time_s: float, delays_s: Sequence[float | None], weights: Sequence[float], load: float
    ) -> Sequence[float]:
        del load
        known = [delay for delay in delays_s if delay]
        if len(known) < 2:
            return weights
        applied = math.log(weights[0] / weights[1])
        sample = Sample(time_s, 1.0, 0.0, math.log(known[0] / known[1]), applied=applied)
        state[0], action = controller.step(state[0], sample)
        assert isinstance(action.command, float)
        part = 1.0 / (1.0 + math.exp(-clamp(action.command, -4.0, 4.0)))
        return part, 1.0 - part

    return weigh


def _swing(world: LaneWorld) -> float:
    shares = [
        weights[0]
        for time_s, weights in zip(world.trace.times_s, world.trace.weights, strict=True)
        if QUIET_S + HOG_S / 2 <= time_s < QUIET_S + HOG_S
    ]
    mean = sum(shares) / len(shares)
    return math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))


def _mean_delays(world: LaneWorld) -> tuple[list[float], list[float]]:
    """Second by second, over all events whose results came in it."""
    sums: dict[int, tuple[float, int]] = {}
    for lane in world.lanes:
        for came_s, delay_s, count in lane.served.delays_s:
            total, events = sums.get(int(came_s), (0.0, 0))
            sums[int(came_s)] = (total + delay_s * count, events + count)
    return list(map(float, sorted(sums))), [sums[second][0] / sums[second][1] for second in sorted(sums)]
