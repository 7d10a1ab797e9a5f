"""Every decision of a consumer, pure: the live consumer and the twin run exactly these.

goals         what a consumer is to hold, and the set point that follows from it at each sample
controller    which controller and guard a goal gets
little        the default for a rate: Little's law and a trim; reachability tells when the rate no longer responds
knee          the default for capacity and latency
starvation    holds any other controller while the queue is empty
profiles      gains for several workloads
pacing        hands messages over evenly
retry         what follows from a handler's failure
unfinished    which messages a commit covers

The names here are those that the twin needs; other code imports from the modules.

One sample, from what was measured to the window:

>>> from flyball.control.wrappers.dither import DitherState, dither_step
>>> from flyball.loops.policy import Observation, Policy, decide, start
>>> goal = parse_goal("rate=400")
>>> controller = make_controller(goal)
>>> policy = Policy("orders", controller, limits=WINDOW_LIMITS, guard=guard_for(controller), glide=False)
>>> measurement = ConsumerMeasurement(
...     time_s=1.0, dt_s=1.0, rate_per_s=58.8, residence_s=0.017, used=1.0, depth=5000
... )
>>> _, target = compute_target(goal, TargetState(), measurement)
>>> observation = Observation(1.0, target.setpoint, target.measurement, None, target.disturbances)
>>> _, record = decide(policy, start(policy, FIRST_WINDOW), observation)
>>> round(record.command, 2)
6.8

Every `DITHER_S`, whole windows whose mean it is:

>>> _, whole = dither_step(DitherState(), record.command)
>>> whole
7
"""

from flyball.consumer.policy.controller import DITHER_S, FIRST_WINDOW, WINDOW_LIMITS, guard_for, make_controller
from flyball.consumer.policy.goals import (
    ConsumerMeasurement,
    DepthReading,
    Goal,
    TargetState,
    compute_target,
    estimate_publish_rate,
    median_residence,
    parse_goal,
)

__all__ = [
    "DITHER_S",
    "FIRST_WINDOW",
    "WINDOW_LIMITS",
    "ConsumerMeasurement",
    "DepthReading",
    "Goal",
    "TargetState",
    "compute_target",
    "estimate_publish_rate",
    "guard_for",
    "make_controller",
    "median_residence",
    "parse_goal",
]
