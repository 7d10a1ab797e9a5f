"""Publisher: how fairly several publishers share one broker (future work of Balasubramanian et al.).

Eight publishers with endless work join a broker that takes in 1,000 messages a second, one after the other. Jain's
index of their confirmed messages over 5 s is 1 when all get the same and 1/8 when one gets everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flyball.control.controllers.publishing.auto import Auto
from flyball.control.controllers.publishing.batch_aimd import BatchAimd
from flyball.control.controllers.publishing.static import Static
from flyball.control.step import Controller
from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import MEASURED, new_figure
from flyball.twin.publisher import jain, run_sharing
from flyball.twin.pubsub import FarSide

PUBLISHERS, OVER_S = 8, 5
CAPACITY = 1000.0
CONTROLLERS: dict[str, Callable[[], Controller[Any]]] = {
    "static, window 1000": lambda: Static(batch=50),
    "batch-aimd, 64 transfers": BatchAimd,
    "auto": Auto,
}


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 5))
    after_s = 20.0 if context.quick else 40.0
    join_every_s = 2.0 if context.quick else 5.0
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    trips_s = (0.013,) if context.quick else (0.001, 0.013, 0.14)
    figure, axes = new_figure(rows=len(CONTROLLERS), row_height_in=2.0)
    last_join = round((PUBLISHERS - 1) * join_every_s)
    for round_trip_s in trips_s:
        far = FarSide(round_trip_s=round_trip_s, intake_s=1.0 / CAPACITY, read_rate=1e5)
        for axis, (name, controller) in zip(axes, CONTROLLERS.items(), strict=True):
            shares = [
                run_sharing(
                    controller,
                    publishers=PUBLISHERS,
                    join_every_s=join_every_s,
                    after_s=after_s,
                    far=far,
                    seed=seed,
                )
                for seed in seeds
            ]
            fair = interval([jain(one[:, last_join + 15 : last_join + 20].sum(axis=1)) for one in shares])
            settled = [
                _settled_s([jain(one[:, k - OVER_S : k].sum(axis=1)) for k in _ends(one, last_join)])
                for one in shares
            ]
            used = interval([float(one[:, last_join:].sum() / after_s / CAPACITY) for one in shares])
            worst = max(settled, key=lambda at: 1e9 if at is None else at)
            rows.append((1000 * round_trip_s, name, fair.text(1, 3), worst, used.text(100, 1)))
            data[f"{name}, {1000 * round_trip_s:g} ms"] = {
                "jain_20_s": fair.mean,
                "jain_ci95": fair.half,
                "fair_after_s": worst,
                "used": used.mean,
            }
            context.note(f"{name}, {1000 * round_trip_s:g} ms: Jain {fair.text(1, 3)}, used {used.text(100, 1)} %")
            if round_trip_s == 0.013:
                for at, one in enumerate(shares[0]):
                    axis.plot(one, linewidth=0.8, color=f"C{at}")
                axis.axvline(last_join, color=MEASURED, linestyle=":")
                axis.set_title(f"{name}, round trip {1000 * round_trip_s:g} ms", fontsize=9)
                axis.set_ylabel("confirmed, 1/s")
    axes[-1].set_xlabel("time in s (dotted: the last one joins)")
    return Report(
        title="Several publishers on one broker",
        body=[
            f"{len(seeds)} seeds; one joins every {join_every_s:g} s. Jain's index over the 5 s that end 20 s "
            f"after "
            "the last joined; fair after: the first end of 5 s from which on the index stays at 0.97 or more, in "
            "the worst seed.",
            Table(("round trip, ms", "controller", "Jain", "fair after, s", "capacity used, %"), rows),
            Picture("runs", "Confirmed messages of each publisher in every second", figure),
            "Equal fixed windows of 1,000 take turns: each waits until the 8,000 messages of all have passed, 8 "
            "s, so that over 5 s some get everything. `batch-aimd` has a bound of 64 transfers for all, and equal "
            "bounds give equal shares. `auto` shares fairly without any bound being set, and keeps the broker's "
            "queue short meanwhile; a publisher that joins gets its share within seconds.",
        ],
        data={"publishers": PUBLISHERS, "seeds": len(seeds), "controllers": data},
    )


def _ends(shares: Any, last_join: int) -> range:
    return range(last_join + OVER_S, shares.shape[1] + 1)


def _settled_s(indices: list[float], wanted: float = 0.97) -> float | None:
    """Seconds after the last joined from which on every index is as wanted; None: never."""
    off = [at for at, index in enumerate(indices) if index < wanted]
    first = off[-1] + 1 if off else 0
    return None if first >= len(indices) else float(first + OVER_S)
