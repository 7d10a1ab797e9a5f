"""Groups: who owns which queue under faults, by every client's own view or by one coordinator (RocketMQ).

In client mode each member computes its queues from a view that it fetches from one of several replicas, as
RocketMQ's clients do; in broker mode one coordinator grants and revokes them. Both run in the twin under the same
faults, with the decisions of live members. A queue-second counts as owned twice when two members take messages
from a queue, and as unowned when nobody does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flyball.lab.experiment import ExperimentContext, Picture, Report, Table
from flyball.lab.intervals import interval
from flyball.lab.plotting import new_figure
from flyball.twin.groups.faults import Fault, Network
from flyball.twin.groups.membership import Mode, Ownership, Scenario, run_membership

MODES: tuple[Mode, ...] = ("client", "broker")
SETTLED_S = 30.0
_SIX = (0.5,) * 6
_AT, _UNTIL = 60.0, 100.0
_TWICE, _UNOWNED = "#d55e00", "#000000"
_OWNERS = ("#dbe9f6", "#c3dced", "#e3eed6", "#cfe3bd", "#f3ead0", "#e8dcf0", "#d9d9d9", "#f6e0e6")


def scenarios() -> dict[str, Scenario]:
    """The fault table; 12 queues and 6 members where nothing else is said."""
    minor, major = ("m03",), ("m00", "m01", "m02", "m03")
    return {
        "none": Scenario(12, _SIX),
        "20 % of calls lost": Scenario(12, _SIX, network=Network(loss=0.2)),
        "50 % of calls lost": Scenario(12, _SIX, network=Network(loss=0.5)),
        "20 % of calls 3 s late": Scenario(12, _SIX, network=Network(late=0.2)),
        "1 of 6 killed, back after 40 s": Scenario(12, _SIX, (Fault("down", minor, _AT, _UNTIL),)),
        "4 of 6 killed, back after 40 s": Scenario(12, _SIX, (Fault("down", major, _AT, _UNTIL),)),
        "1 of 6 stopped for 20 s": Scenario(12, _SIX, (Fault("paused", minor, _AT, _AT + 20.0),)),
        "1 of 6 cut off for 40 s": Scenario(12, _SIX, (Fault("cut off", minor, _AT, _UNTIL),)),
        "leader killed, back after 40 s": Scenario(12, _SIX, (Fault("down", ("m00",), _AT, _UNTIL),)),
        "leader stopped past its lease": Scenario(12, _SIX, (Fault("paused", ("m00",), _AT, _AT + 20.0),)),
        "leader cut off for 40 s": Scenario(12, _SIX, (Fault("cut off", ("m00",), _AT, _UNTIL),)),
        "6 members, 4 queues, 1 killed": Scenario(4, _SIX, (Fault("down", ("m01",), _AT, _UNTIL),)),
        "30 join at once": Scenario(24, (0.5,) * 3 + (60.0,) * 30),
    }


def timeline_scenario() -> Scenario:
    """One fault after the other, over a network that loses a tenth of all calls."""
    return Scenario(
        12,
        _SIX,
        (
            Fault("down", ("m03",), 30.0, 55.0),
            Fault("paused", ("m01",), 70.0, 90.0),
            Fault("cut off", ("m05",), 105.0, 135.0),
            Fault("down", ("m00", "m02"), 150.0, 170.0),
        ),
        Network(loss=0.1),
        until_s=195.0,
    )


def run(context: ExperimentContext) -> Report:
    seeds = range(context.seed, context.seed + (2 if context.quick else 10))
    rows: list[tuple[object, ...]] = []
    data: dict[str, Any] = {}
    for name, scenario in scenarios().items():
        found: Mapping[Mode, list[Ownership]] = {
            mode: [run_membership(scenario, mode, seed) for seed in seeds] for mode in MODES
        }
        data[name] = {mode: _figures(found[mode]) for mode in MODES}
        twice = [interval([one.twice_s(SETTLED_S) for one in found[mode]]).text(1, 1) for mode in MODES]
        unowned = [interval([one.unowned_s(SETTLED_S) for one in found[mode]]).text(1, 1) for mode in MODES]
        longest = [data[name][mode]["longest_unowned_s"] for mode in MODES]
        moves = [data[name][mode]["moves"] for mode in MODES]
        rows.append((name, *twice, *unowned, *longest, *moves))
        context.note(f"{name}: twice {' / '.join(twice)}, unowned {' / '.join(unowned)} queue-seconds")
    scenario = timeline_scenario()
    runs = {mode: run_membership(scenario, mode, context.seed) for mode in MODES}
    data["timeline"] = {mode: _figures([runs[mode]]) for mode in MODES}
    return Report(
        title="Who owns which queue under faults: client mode and broker mode",
        body=[
            f"{len(seeds)} seeds, {scenarios()['none'].until_s:.0f} s each, of which the first {SETTLED_S:.0f} "
            "are left out; heartbeats every second, sessions of 6 s. Broker mode plans sticky, client mode "
            "averagely, from 3 replicas whose views lag by up to 2 s. Queue-seconds as mean with "
            "its 95 % interval.",
            Table(
                (
                    "fault",
                    "owned twice, client",
                    "owned twice, broker",
                    "unowned, client",
                    "unowned, broker",
                    "longest unowned s, client",
                    "longest unowned s, broker",
                    "moves, client",
                    "moves, broker",
                ),
                rows,
            ),
            Picture(
                "runs",
                "Members' queues over time; orange: owned twice, black: unowned; grey bars: faults (m03 killed, "
                "m01 stopped, m05 cut off, m00 and m02 killed), with a tenth of all calls lost throughout",
                _draw(scenario, runs),
            ),
            "In broker mode no queue is ever owned twice: a queue has a new owner when the one before released it "
            "or its session is over. A queue of a dead owner is unowned until its session has expired and the "
            "leader, who may have to be elected first, has made its next round. "
            "In client mode members act on views of different age, so that queues are owned twice whenever "
            "membership changes; a member that is cut off from the replicas, and not from its queues, reads on "
            "beside its successor until it is back.",
            "The price of broker mode is seen where calls are lost or late: a member that could not report for "
            "two thirds of its session releases its queues in time, although it could have read on. A longer "
            "session time-out trades that against the time after a crash.",
        ],
        data={"seeds": len(seeds), "faults": data},
    )


def _figures(runs: list[Ownership]) -> dict[str, float]:
    return {
        "twice_s": float(np.mean([one.twice_s(SETTLED_S) for one in runs])),
        "unowned_s": float(np.mean([one.unowned_s(SETTLED_S) for one in runs])),
        "longest_unowned_s": float(max(one.longest_unowned_s(SETTLED_S) for one in runs)),
        "moves": float(np.mean([one.moves for one in runs])),
    }


def _draw(scenario: Scenario, runs: Mapping[Mode, Ownership]) -> Any:
    from matplotlib.colors import to_rgb

    figure, axes = new_figure(rows=len(runs), row_height_in=2.8, width_in=10.0)
    for axis, (mode, one) in zip(axes, runs.items(), strict=True):
        colours = np.array([to_rgb(colour) for colour in _OWNERS])
        image = colours[one.owner.T % len(_OWNERS)]
        image[one.readers.T > 1] = to_rgb(_TWICE)
        image[one.readers.T == 0] = to_rgb(_UNOWNED)
        axis.imshow(
            image,
            aspect="auto",
            interpolation="nearest",
            extent=(0.0, scenario.until_s, scenario.queues - 0.5, -0.5),
        )
        axis.grid(False)
        for fault in scenario.faults:
            axis.axvspan(fault.start_s, fault.end_s, ymin=1.0, ymax=1.04, color="#555555", clip_on=False)
        axis.set_ylabel("queue")
        axis.set_title(
            f"{mode} mode: {one.twice_s(10.0):.0f} queue-seconds owned twice, {one.unowned_s(10.0):.0f} unowned",
            fontsize=9,
            pad=12,
        )
    axes[-1].set_xlabel("time in s")
    return figure
