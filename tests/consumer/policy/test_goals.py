"""Each goal on a real queue, behind 6.7 ms of network in each direction, so that the window matters."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator

import pytest

from flyball import Consumer
from flyball.brokers import Message
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode
from tests.consumer.queues import ChannelUnderTest, fresh, until


@pytest.fixture
def far(rabbitmq: RabbitMqNode) -> Iterator[str]:
    """The URL of a RabbitMQ that is some milliseconds away."""
    with FaultProxy(rabbitmq.ports.amqp, delay_s=0.0067) as proxy:
        yield rabbitmq.amqp_url.replace(str(rabbitmq.ports.amqp), str(proxy.port))


async def filled(url: str, count: int) -> str:
    queue = fresh()
    await ChannelUnderTest(url, queue, log=False).send([b"%d" % number for number in range(count)])
    return queue


def working(seconds: float) -> Callable[[Message], Awaitable[None]]:
    async def handle(_: Message) -> None:
        await asyncio.sleep(seconds)

    return handle


def one_at_a_time(seconds: float) -> Callable[[Message], Awaitable[None]]:
    """A handler behind a lock: its rate does not depend on how many messages are in flight."""
    alone = asyncio.Lock()

    async def handle(_: Message) -> None:
        async with alone:
            await asyncio.sleep(seconds)

    return handle


def test_a_rate_has_the_window_that_it_needs(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 3000)
        async with Consumer(far, queue=queue, handler=working(0.01), goal="rate=200") as consumer:
            for goal in (200.0, 350.0):  # the second one while it runs
                consumer.goal = f"rate={goal:g}"
                before = len(consumer.steps())
                await until(lambda before=before: len(consumer.steps()) >= before + 4)  # type: ignore[misc]  # mypy and defaults
                residence_s = consumer.stats.residence_s
                assert residence_s is not None
                assert residence_s > 0.02  # 10 ms and the way there and back
                assert consumer.window == pytest.approx(goal * residence_s, rel=0.4)
                assert consumer.steps()[-1].setpoint == goal

    asyncio.run(scenario())


def test_capacity_takes_what_the_handlers_can_take_and_the_way_between(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 4000)
        consumer = Consumer(far, queue=queue, handler=working(0.02), goal="capacity", concurrency=5, period_s=0.4)
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 15)
            # 5 at work for 20 ms and 13 ms on the way: 8.4 in flight, a quarter and one to spare
            assert 5.0 < consumer.window < 30.0

    asyncio.run(scenario())


def test_latency_lets_no_more_in_than_can_be_done_in_time(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 4000)
        consumer = Consumer(far, queue=queue, handler=one_at_a_time(0.01), goal="latency=0.2", period_s=0.4)
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 18)
            assert consumer.window <= 0.2 / 0.01  # each in the window waits for those before it
            tail = [one.measurement for one in consumer.steps()[-9:] if isinstance(one.measurement, float)]
            assert statistics.median(tail) <= 0.2

    asyncio.run(scenario())


def test_a_backlog_is_gone_by_its_time(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 800)
        consumer = Consumer(far, queue=queue, handler=working(0.01), goal="drain-by=8", period_s=0.5)
        async with consumer:
            await until(lambda: consumer.stats.acked == 800)
            goals = [one.setpoint for one in consumer.steps() if isinstance(one.setpoint, float)]
        asked = [goal for goal in goals if goal > 1.0]
        assert 70.0 < asked[0] < 150.0  # 800 in 8 s; the first samples had no loop yet
        assert max(asked[: len(asked) // 2]) < 400.0  # it does not run at full speed because it could

    asyncio.run(scenario())


def test_a_goal_out_of_reach_says_what_is_reachable(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 3000)
        consumer = Consumer(far, queue=queue, handler=working(0.02), goal="rate=2000", concurrency=2, period_s=0.3)
        async with consumer:
            await until(lambda: "out of reach" in consumer.status)
            reachable = float(consumer.status.split("reachable is about ")[1].split("/s")[0])
            assert 20.0 < reachable <= 110.0  # two at a time, 20 ms each

    asyncio.run(scenario())


def test_a_handler_that_the_window_does_not_move_is_explained_by_the_guard(far: str) -> None:
    async def scenario() -> None:
        queue = await filled(far, 4000)
        consumer = Consumer(
            far,
            queue=queue,
            handler=one_at_a_time(0.01),
            goal="rate=400",
            controller={"name": "pi", "kp": 0.0, "ki": 0.03},
            period_s=0.3,
        )
        async with consumer:
            assert consumer.loop is not None
            loop = consumer.loop
            await until(lambda: loop.frozen is not None)
            assert "the window" in (loop.frozen or "")
            assert "the rate" in (loop.frozen or "")
            held = consumer.window
            before = len(consumer.steps())
            await until(lambda: len(consumer.steps()) >= before + 5)
            assert consumer.window == held  # not fought

    asyncio.run(scenario())
