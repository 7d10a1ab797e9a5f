"""Models per workload: the one at work is recognised, and the window does not jump when the gains change."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball import Consumer
from flyball.brokers import Message
from flyball.consumer.policy.profiles import Profile, ProfileScheduled
from flyball.control.controllers.pi import Pi
from flyball.control.design.design import design
from flyball.control.gains import Gains
from flyball.control.identification.identify import identify
from flyball.control.models import first_order
from flyball.control.step import ReasonCode, Sample
from flyball.errors import InvalidValue
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.testing.controllers import check_controller
from flyball.twin.consumer import ConsumerPlant, staircase
from flyball.twin.consumer_loop import run_consumer
from tests.consumer.queues import ChannelUnderTest, fresh, until

GOAL = 400.0


def designed(name: str, a: float, b: float) -> Profile:
    gains = design(first_order(a, b), "pi", settling=4.0, overshoot=0.1).gains
    assert isinstance(gains, Gains)
    return Profile(name, a, b, gains.kp, gains.ki)


def identified(name: str, plant: ConsumerPlant) -> Profile:
    """What `flyball tune` does: a staircase on the plant, and gains for the model that is found."""
    windows, rates = staircase(plant, list(range(1, 20, 2)), samples_each=3, seed=2)
    fit = identify(windows, rates, align="same", delay=0)
    return designed(name, fit.model.a[0], fit.model.b[0])


SHORT, LONG = ConsumerPlant(handling_s=0.001, handlers=50), ConsumerPlant(handling_s=0.045, handlers=50)


CHANGING = ConsumerPlant(handling_s=lambda t: 0.045 if 30.0 <= t < 60.0 else 0.001, handlers=50, wander=0.05)


def missed(rate: np.ndarray, start: int) -> float:
    """Messages too few or too many in the ten samples from `start` on."""
    return float(np.abs(rate - GOAL)[start : start + 10].sum())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_workload_is_recognised_and_met_with_its_own_gains(seed: int) -> None:
    short, long = identified("short", SHORT), identified("long", LONG)
    assert short.residence_s == pytest.approx(SHORT.residence_s(), rel=0.15)
    assert long.residence_s == pytest.approx(LONG.residence_s(), rel=0.15)
    run = run_consumer(CHANGING, f"rate={GOAL:g}", ProfileScheduled((short, long)), samples=90, seed=seed)
    switches = [k for k, record in enumerate(run.records) if record.code is ReasonCode.GAINS_CHANGED]
    assert len(switches) == 2, f"seed {seed}: one switch a change, no chattering"
    assert [run.records[k].reason for k in switches] == ["profile long (switched)", "profile short (switched)"]
    assert 29 <= switches[0] <= 31
    assert 59 <= switches[1] <= 61
    alone = run_consumer(CHANGING, f"rate={GOAL:g}", Pi(short.kp, short.ki), samples=90, seed=seed)
    assert missed(run.rate, 30) < 0.75 * missed(alone.rate, 30), f"seed {seed}"


@given(st.floats(0.002, 0.5), st.floats(1.5, 20.0), st.lists(st.floats(0.92, 1.08), min_size=2, max_size=30))
def test_noise_near_a_profile_never_switches(residence_s: float, ratio: float, noise: list[float]) -> None:
    one, two = (
        Profile(name, 0.0, 1.0 / r, 0.0, 0.5 * r)
        for name, r in (("one", residence_s), ("two", ratio * residence_s))
    )
    controller = ProfileScheduled((one, two))
    state, command = controller.initial(5.0), 5.0
    for off in noise:
        seen = (math.nan, residence_s * off)
        state, action = controller.step(state, Sample(1.0, 1.0, 100.0, 100.0, command, seen))
        assert (action.reason, action.code) == ("profile one", ReasonCode.UNSPECIFIED)


@given(st.floats(0.5, 200.0), st.floats(-0.2, 0.2))
def test_the_window_does_not_jump_when_the_gains_change(window: float, error: float) -> None:
    short, long = Profile("short", 0.0, 60.0, 0.002, 0.006), Profile("long", 0.0, 10.0, 0.01, 0.04)
    controller = ProfileScheduled((short, long))
    state = controller.initial(window)
    windows = [window]
    for residence_s in (1 / 60.0, 1 / 60.0, 0.1, 0.1):
        sample = Sample(1.0, 1.0, GOAL, GOAL * (1.0 - error), windows[-1], (math.nan, residence_s))
        state, action = controller.step(state, sample)
        assert isinstance(action.command, float)
        windows.append(action.command)
    most = abs(error) * GOAL * (abs(long.kp) + abs(long.ki))
    assert all(abs(after - before) <= most + 1e-9 for before, after in pairwise(windows))


def test_profiled_keeps_the_contract_of_controllers() -> None:
    controller = ProfileScheduled((designed("short", 0.0, 60.0), designed("long", 0.0, 10.0)))
    check_controller(controller, disturbances=(1.0, 0.017, 1.0, 10.0, 10.0, 400.0, 0.02))


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        ((), "at least one"),
        ((designed("a", 0.0, 60.0), designed("a", 0.0, 10.0)), "with different names"),
        ((designed("a", 0.0, 60.0), designed("b", 0.0, 55.0)), "cannot be distinguished"),
    ],
)
def test_profiles_that_cannot_be(profiles: tuple[Profile, ...], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        ProfileScheduled(profiles)
    with pytest.raises(InvalidValue, match="b > 0"):
        Profile("x", 0.5, -1.0, 0.0, 0.1)


def test_a_live_consumer_recognises_slow_messages(rabbitmq: RabbitMqNode) -> None:
    """Messages of 5 ms, then messages of 60 ms, behind 6.7 ms of network in each direction."""
    controller = ProfileScheduled((designed("quick", 0.0, 1 / 0.02), designed("slow", 0.0, 1 / 0.08)))

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.06 if message.body == b"slow" else 0.005)

    async def scenario(proxy: FaultProxy) -> None:
        url = rabbitmq.amqp_url.replace(str(rabbitmq.ports.amqp), str(proxy.port))
        queue = fresh()
        await ChannelUnderTest(rabbitmq.amqp_url, queue, log=False).send([b"quick"] * 300 + [b"slow"] * 400)
        consumer = Consumer(url, queue=queue, handler=handle, goal="rate=100", controller=controller, period_s=0.4)
        async with consumer:
            await until(lambda: any(one.code is ReasonCode.GAINS_CHANGED for one in consumer.steps()))
            reasons = [one.reason for one in consumer.steps()]
            assert "profile quick" in reasons
            assert "profile slow (switched)" in reasons

    with FaultProxy(rabbitmq.ports.amqp, delay_s=0.0067) as proxy:
        asyncio.run(scenario(proxy))
