"""Hold any controller while the queue has no more messages: such samples say nothing about the window.

A rate below the goal because publishers send less is no reason to open the window: a controller with an integral
would open it to its limit, and flood the handlers when messages come again. The guard sees that the window does
not move, and does not conclude that its gain is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flyball.consumer.policy.goals import disturbances_of
from flyball.control.controllers.common import scalar_error
from flyball.control.step import Action, Controller, ReasonCode, Sample, Value, hold
from flyball.control.wrappers.common import check_inner


@dataclass(frozen=True, slots=True)
class HoldWhenStarved:
    """The inner controller, held while the window is not full and the rate is below the goal.

    >>> from flyball.control.controllers.pi import Pi
    >>> controller = HoldWhenStarved(Pi(kp=0.0, ki=0.006))
    >>> from flyball.consumer.policy.goals import ConsumerDisturbances
    >>> starved = Sample(1.0, 1.0, 400.0, 120.0, 6.0, ConsumerDisturbances(used=0.1, publish_per_s=120.0))
    >>> action = controller.step(controller.initial(6.0), starved)[1]
    >>> print(f"{action.code}: {action.reason}")
    starved: the queue had no more: publishers send about 120/s, no window brings 400/s
    """

    inner: Controller[Any] = field(metadata={"help": "the controller that acts while there are messages"})

    def __post_init__(self) -> None:
        check_inner(self)

    def initial(self, command: Value) -> Any:
        return self.inner.initial(command)

    def step(self, state: Any, sample: Sample) -> tuple[Any, Action]:
        disturbances, error = disturbances_of(sample), scalar_error(sample)
        if disturbances.is_full or error is None or error <= 0.0:
            return self.inner.step(state, sample)
        publish = disturbances.publish_per_s
        publishers = (
            ""
            if publish is None
            else f": publishers send about {publish:.3g}/s, no window brings {sample.setpoint:g}/s"
        )
        return state, hold(f"the queue had no more{publishers}", ReasonCode.STARVED)
