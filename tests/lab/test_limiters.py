"""The limiters do what their sources print."""

from __future__ import annotations

from typing import Any

import pytest

from flyball.consumer.policy.goals import ConsumerDisturbances
from flyball.control.step import Controller, Sample
from flyball.lab.rigs.consumer.limiters.aimd import AimdLimit
from flyball.lab.rigs.consumer.limiters.gradient2 import Gradient2Limit
from flyball.lab.rigs.consumer.limiters.vegas import VegasLimit
from flyball.testing.controllers import check_controller


def _limits(
    controller: Controller[Any], limit: float, residences_s: list[float], used: float = 1.0
) -> list[float]:
    state, found = controller.initial(limit), []
    for residence_s in residences_s:
        rate = limit / residence_s * (1.0 if used else 0.1)
        measured = ConsumerDisturbances(residence_s=residence_s, used=used, rate_per_s=rate)
        state, action = controller.step(state, Sample(0.0, 1.0, rate, rate, limit, measured))
        assert isinstance(action.command, float)
        limit = action.command
        found.append(limit)
    return found


def test_vegas_counts_the_queue() -> None:
    # the shortest; no queue: + 6; a queue of ceil(26 · 0.1) = 3, from 3 to 6: stays; of 13: − 1
    assert _limits(VegasLimit(), 20.0, [0.1, 0.1, 0.1 / 0.9, 0.2]) == [20.0, 26.0, 26.0, 25.0]
    assert _limits(VegasLimit(), 20.0, [0.1, 0.1], used=0.0) == [20.0, 20.0]


def test_gradient2_follows_the_ratio_of_the_times() -> None:
    grown = _limits(Gradient2Limit(), 50.0, [0.1, 0.1])
    assert grown == pytest.approx([50.8, 51.6])  # 0.2 of the 4 that may queue
    assert _limits(Gradient2Limit(), 50.0, [0.1, 1.0])[1] < grown[1]
    assert _limits(Gradient2Limit(), 20.0, [0.1, 5.0, 5.0])[-1] >= 20.0


def test_aimd_cuts_after_a_time_out() -> None:
    assert _limits(AimdLimit(), 30.0, [0.1, 0.1, 6.0]) == pytest.approx([31.0, 32.0, 28.8])


@pytest.mark.parametrize("limiter", [VegasLimit(), Gradient2Limit(), AimdLimit()])
def test_they_are_controllers(limiter: Controller[Any]) -> None:
    check_controller(limiter, command=30.0, disturbances=(1.0, 0.1, 1.0, 10.0, 5.0, 300.0), first_move=10.0)
