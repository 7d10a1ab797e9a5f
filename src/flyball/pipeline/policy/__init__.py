"""Every decision of the pipeline's first tier, pure: state and observation in, new state and decision out.

    admission   how many events a lane may take in, by the free space of its result queue (PI) and by its pace
    splitting   which lane gets how many events of a tick (error diffusion by weights)
    balancing   the weights, from the lanes' predicted delays (two lanes: PI on their log ratio; more: LQR)
    combining   whose results the combiner takes next, how far event time is settled, whom it stops waiting for
    feeding     the same for pipelines that write the input of another
    failures    what is worth another try, and when
    appending   names and numbers of rows that Spark may write more than once

The acting files observe, call this package and carry out; the twin runs it as it is.
"""

from flyball.pipeline.policy.admission import (
    FlowControl,
    FlowState,
    Pace,
    admissible,
    admitted,
    flow_controller,
    flow_start,
    flow_step,
    shares_fit,
)
from flyball.pipeline.policy.balancing import (
    BALANCE_EVERY_S,
    Balancer,
    BalanceState,
    BatchTimes,
    LaneDelay,
    lane_plant,
    load_of,
    with_joined,
    without_laggards,
)
from flyball.pipeline.policy.combining import LaneProgress, Merge, add_entry, next_lane
from flyball.pipeline.policy.splitting import equal_weights, room_ahead, split, within_budget
from flyball.pipeline.policy.upstreams import (
    UpstreamProgress,
    Upstreams,
    all_ended,
    ended_at,
    settled_time_s,
    upstreams_of,
    with_marks,
)

__all__ = [
    "BALANCE_EVERY_S",
    "BalanceState",
    "Balancer",
    "BatchTimes",
    "FlowControl",
    "FlowState",
    "LaneDelay",
    "LaneProgress",
    "Merge",
    "Pace",
    "UpstreamProgress",
    "Upstreams",
    "add_entry",
    "admissible",
    "admitted",
    "all_ended",
    "ended_at",
    "equal_weights",
    "flow_controller",
    "flow_start",
    "flow_step",
    "lane_plant",
    "load_of",
    "next_lane",
    "room_ahead",
    "settled_time_s",
    "shares_fit",
    "split",
    "upstreams_of",
    "with_joined",
    "with_marks",
    "within_budget",
    "without_laggards",
]
