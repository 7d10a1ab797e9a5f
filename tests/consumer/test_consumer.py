"""The consumer: handlers, retries, dead letters, stopping, goals; on memory, then on every real broker."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
import pytest

from flyball import Capacity, Consumer, Message, Rate, RetryPolicy, connect
from flyball.brokers import Delivery
from flyball.brokers.core.receiver import BaseReceiver
from flyball.brokers.memory.broker import MemoryBroker
from flyball.brokers.port import Unsupported
from flyball.errors import InvalidValue
from flyball.servers.rabbitmq import RabbitMqNode
from flyball.store import SqliteDatabase
from tests.consumer.queues import fresh, until

QUICK = RetryPolicy(retries=2, first_s=0.01, longest_s=0.02)


class Log:
    """A handler that remembers; `work` is what it does meanwhile."""

    def __init__(self, work: Callable[[Message], Awaitable[None]] | None = None) -> None:
        self.ids: list[str] = []
        self.running = self.most = 0
        self._work = work

    async def __call__(self, message: Message) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._work is not None:
                await self._work(message)
            self.ids.append(message.id)
        finally:
            self.running -= 1


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def waiting(url: str, name: str) -> int:
    async with await connect(url) as broker:
        return await broker.depth(name)


# --- what can be asked for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either queue, or channel and group must be set"),
        ({"queue": "q", "group": "g"}, "either queue, or channel and group must be set"),
        ({"queue": "q", "goal": "rate=400", "auto_ack": True}, "auto_ack excludes goal rate=400"),
        ({"queue": "q", "goal": "speed=4"}, "goal must be one of rate=400, capacity"),
        ({"queue": "q", "goal": "rate=-1"}, "goal rate must be > 0 messages a second, got -1"),
        ({"queue": "q", "goal": "rate=4", "mode": "off"}, "mode must be one of advise, shadow, on, got 'off'"),
        ({"queue": "q", "goal": "rate=4", "controller": "pip"}, "there is no controller 'pip'"),
        ({"queue": "q", "goal": "capacity", "controller": "pi"}, "has its own controller"),
        (
            {"queue": "q", "dead_letter": "d", "dead_letter_exchange": True},
            "dead_letter 'd' and dead_letter_exchange exclude each other",
        ),
        ({"queue": "q", "dead_letter": "q"}, "dead_letter must be another channel than 'q', which is consumed"),
        ({"queue": "q", "dead_letter": 3}, "dead_letter must be the name of a channel, got 3"),
        ({"queue": "q", "dead_letter": "a*b"}, "invalid channel name 'a*b'"),
        ({"queue": "q", "retries": 1.5}, "retries must be an integer >= 0, got 1.5"),
        ({"queue": "q", "retries": True}, "retries must be an integer >= 0, got True"),
        ({"queue": "q", "handler": lambda: None}, "a handler must be a function of one message, got <lambda>"),
        ({"queue": "q", "controller": "pi"}, "need a goal"),
        ({"queue": "q", "concurrency": 0}, "concurrency must be >= 1, got 0"),
        ({"queue": "q", "retries": -1}, "retries must be an integer >= 0, got -1"),
        ({"queue": "q", "handler": "print"}, "handler must be a function of one message, got 'print'"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match="^.*" + re.escape(message)):
        Consumer("memory://x", **{"handler": print, **arguments})


# --- handlers ----------------------------------------------------------------------------------------------------


def test_a_failing_message_is_tried_again_and_then_becomes_a_dead_letter(memory: Any) -> None:
    async def scenario() -> None:
        ids = await memory.send([b"good", b"bad", b"good"])
        tries: Counter[bytes] = Counter()

        async def handle(message: Message) -> None:
            tries[message.body] += 1
            if message.body == b"bad":
                raise ValueError("no such customer")

        async with Consumer(memory.url, handler=handle, retries=QUICK, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 3)
        assert tries == {b"good": 2, b"bad": 3}
        assert consumer.stats.dead_lettered == 1
        async with await connect(memory.url) as broker:
            receiver = await broker.receiver(f"{memory.name}.dead")
            (dead,) = await receiver.receive(timeout_s=10.0)
        assert (dead.message.id, dead.message.body) == (ids[1], b"bad")
        assert dead.message.headers["flyball-error"] == "ValueError: no such customer (after 3 tries)"
        assert await waiting(memory.url, memory.name) == 0

    asyncio.run(scenario())


def test_blocking_handlers_run_in_as_many_threads_as_allowed(memory: Any) -> None:
    lock, running, most, names = threading.Lock(), 0, 0, set()

    def handle(_: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            names.add(threading.current_thread().name)
        time.sleep(0.01)
        with lock:
            running -= 1

    async def scenario() -> None:
        await memory.send(bodies(40))
        async with Consumer(memory.url, handler=handle, concurrency=3, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 40)

    asyncio.run(scenario())
    assert most == 3
    assert names == {"flyball-handler"}


@pytest.mark.parametrize("blocking", [False, True])
def test_a_handler_that_hangs_is_given_up(memory: Any, blocking: bool) -> None:
    release = threading.Event()

    async def hang(message: Message) -> None:
        if message.body == b"0":
            await asyncio.sleep(3600)

    def hang_in_a_thread(message: Message) -> None:
        if message.body == b"0":
            release.wait(60)

    async def scenario() -> None:
        await memory.send(bodies(5))
        handler: Any = hang_in_a_thread if blocking else hang
        consumer = Consumer(
            memory.url, handler=handler, concurrency=1, handler_timeout_s=0.2, retries=0, **memory.arguments
        )
        async with consumer:
            await until(lambda: consumer.stats.acked == 5)
        release.set()
        assert consumer.stats.dead_lettered == 1

    asyncio.run(scenario())


def test_the_wait_for_a_thread_is_not_part_of_a_handlers_time(memory: Any) -> None:
    """All 32 threads hang: their messages are given up; those that wait for a thread are handled after them."""
    release = threading.Event()
    called: list[str] = []

    def hang(message: Message) -> None:
        called.append(message.id)
        if len(called) <= 32:
            release.wait(60)

    async def scenario() -> list[str]:
        await memory.send(bodies(80))
        threads = threading.active_count()
        consumer = Consumer(
            memory.url, handler=hang, handler_timeout_s=3.0, retries=0, window=80, **memory.arguments
        )
        async with consumer:
            await until(lambda: consumer.stats.acked == 80)
            release.set()
        await until(lambda: threading.active_count() <= threads)
        async with await connect(memory.url) as broker:
            receiver = await broker.receiver(f"{memory.name}.dead", window=100)
            return [delivery.message.id for delivery in await receiver.receive(100, timeout_s=0.0)]

    dead = asyncio.run(scenario())
    assert len(called) == 80
    assert set(dead) == set(called[:32])


def test_a_timeout_of_the_handlers_own_is_an_error_like_any_other(memory: Any) -> None:
    """A call to another service that times out ends the handler: its thread is free and needs no other."""
    threads: set[int] = set()

    def call(_: Message) -> None:
        threads.add(threading.get_ident())
        raise TimeoutError

    async def scenario() -> None:
        await memory.send(bodies(20))
        options: dict[str, Any] = {"concurrency": 1, "handler_timeout_s": 60.0, "retries": 0}
        async with Consumer(memory.url, handler=call, **options, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.dead_lettered == 20)

    asyncio.run(scenario())
    assert len(threads) == 1


def test_a_stop_acknowledges_what_is_done_and_gives_back_the_rest(memory: Any) -> None:
    async def scenario() -> None:
        ids = await memory.send(bodies(30))
        gate = asyncio.Event()

        async def work(message: Message) -> None:
            if message.body not in (b"0", b"1", b"2"):
                await gate.wait()

        log = Log(work)
        consumer = Consumer(memory.url, handler=log, window=10, concurrency=10, **memory.arguments)
        async with consumer:
            await until(lambda: consumer.stats.acked == 3 and log.running == 10)
            consumer.stop()
            await asyncio.sleep(0.3)
            gate.set()  # the ten under way finish, nothing new begins
        assert log.ids == ids[:13]
        assert await waiting(memory.url, memory.name) == 17

    asyncio.run(scenario())


def slow_down_acknowledgements(monkeypatch: pytest.MonkeyPatch, begun: asyncio.Event) -> None:
    """Each takes half a second; `begun` is set when the first one begins."""
    acknowledge = BaseReceiver.ack

    async def acknowledge_slowly(self: BaseReceiver, *deliveries: Delivery) -> None:
        begun.set()
        await asyncio.sleep(0.5)
        await acknowledge(self, *deliveries)

    monkeypatch.setattr(BaseReceiver, "ack", acknowledge_slowly)


def test_an_acknowledgement_that_is_under_way_at_the_stop_is_finished(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def handle(_: Message) -> None: ...

    async def scenario() -> None:
        await memory.send(bodies(1))
        slow_down_acknowledgements(monkeypatch, begun)
        async with Consumer(memory.url, handler=handle, **memory.arguments) as consumer:
            await begun.wait()
        assert consumer.stats.acked == 1
        assert await waiting(memory.url, memory.name) == 0

    asyncio.run(scenario())


def test_what_is_handled_while_another_acknowledgement_is_under_way_is_acknowledged_at_the_stop(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, handled = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"1":
            await begun.wait()
            handled.set()

    async def scenario() -> None:
        await memory.send(bodies(2))
        slow_down_acknowledgements(monkeypatch, begun)
        async with Consumer(memory.url, handler=handle, **memory.arguments) as consumer:
            await handled.wait()
        assert consumer.stats.acked == 2
        assert await waiting(memory.url, memory.name) == 0

    asyncio.run(scenario())


def test_an_acknowledgement_that_raises_anything_does_not_end_those_that_follow(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge = BaseReceiver.ack
    failed = asyncio.Event()

    async def fail_once(self: BaseReceiver, *deliveries: Delivery) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a fault of a client library")
        await acknowledge(self, *deliveries)

    async def handle(message: Message) -> None:
        if message.body != b"0":
            await failed.wait()

    async def scenario() -> None:
        await memory.send(bodies(6))
        monkeypatch.setattr(BaseReceiver, "ack", fail_once)
        async with Consumer(memory.url, handler=handle, window=2, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.handed == 6)
        assert await waiting(memory.url, memory.name) == 1  # what was not acknowledged goes back

    asyncio.run(scenario())


def test_a_block_left_by_an_exception_closes_in_order_and_raises_that_exception(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(3))
        began = asyncio.Event()
        finish = asyncio.Event()

        async def work(_: Message) -> None:
            began.set()
            await finish.wait()

        consumer = Consumer(memory.url, handler=work, window=1, **memory.arguments)

        async def program() -> None:
            async with consumer:
                await began.wait()
                asyncio.get_running_loop().call_later(0.05, finish.set)
                raise ValueError("of the program")

        with pytest.raises(ValueError, match="of the program"):
            await program()
        assert consumer.stats.acked == 1  # what was being handled
        assert await waiting(memory.url, memory.name) == 2

    asyncio.run(scenario())


def test_a_handler_that_outlasts_the_stop_gives_its_message_back(memory: Any) -> None:
    async def scenario() -> None:
        (id,) = await memory.send([b"long"])
        began = asyncio.Event()

        async def work(_: Message) -> None:
            began.set()
            await asyncio.sleep(3600)

        async with Consumer(memory.url, handler=work, stop_timeout_s=0.1, **memory.arguments) as consumer:
            await began.wait()
        assert consumer.stats.acked == 0
        async with await connect(memory.url) as broker:
            receiver = await broker.receiver(memory.name)
            (again,) = await receiver.receive(timeout_s=10.0)
            assert again.message.id == id

    asyncio.run(scenario())


def test_tries_wait_longer_each_time(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send([b"bad"])
        tried_s: list[float] = []

        async def handle(_: Message) -> None:
            tried_s.append(time.monotonic())
            raise ValueError("never")

        policy = RetryPolicy(retries=3, first_s=0.1, longest_s=0.4)
        async with Consumer(memory.url, handler=handle, retries=policy, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.dead_lettered == 1)
        pauses_s = [after - before for before, after in pairwise(tried_s)]
        least_s = [0.05, 0.1, 0.2]  # half of 0.1, 0.2 and 0.4: the rest is chance, so that not all come at once
        assert len(pauses_s) == 3
        assert all(pause_s >= s - 0.005 for pause_s, s in zip(pauses_s, least_s, strict=True))

    asyncio.run(scenario())


def test_automatic_acks_without_a_goal_acknowledge_before_the_handler(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send([b"once"])
        tries = 0

        async def handle(_: Message) -> None:
            nonlocal tries
            tries += 1
            await until(lambda: consumer.stats.acked == 1)

        consumer = Consumer(memory.url, handler=handle, auto_ack=True, **memory.arguments)
        async with consumer:
            await until(lambda: tries == 1)
        assert await waiting(memory.url, memory.name) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["no file '\udcff'", "x" * 1_000_000], ids=["surrogate", "long"])
def test_whatever_a_handler_raises_its_message_becomes_a_dead_letter(memory: Any, text: str) -> None:
    async def scenario() -> None:
        (id,) = await memory.send([b"bad"])

        async def handle(_: Message) -> None:
            raise OSError(text)

        async with Consumer(memory.url, handler=handle, retries=0, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 1)
        async with await connect(memory.url) as broker:
            receiver = await broker.receiver(f"{memory.name}.dead")
            (dead,) = await receiver.receive(timeout_s=10.0)
        assert (dead.message.id, dead.message.body) == (id, b"bad")
        assert str(dead.message.headers["flyball-error"]).startswith("OSError: ")

    asyncio.run(scenario())


class _NotAnException(BaseException):
    """As some frameworks use to leave a handler."""


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [GeneratorExit(), BaseExceptionGroup("group", [GeneratorExit()]), _NotAnException(), _Speechless()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("blocking", [False, True], ids=["asynchronous", "thread"])
def test_a_message_whose_handler_raises_what_is_no_exception_costs_no_slot(
    memory: Any, blocking: bool, error: BaseException
) -> None:
    async def scenario() -> None:
        await memory.send([b"bad"] * 4 + [b"good"] * 4)
        good = 0

        def handle(message: Message) -> None:
            nonlocal good
            if message.body == b"bad":
                raise error
            good += 1

        async def handle_async(message: Message) -> None:
            handle(message)

        options = {"window": 2, "retries": 0, **memory.arguments}
        async with Consumer(memory.url, handler=handle if blocking else handle_async, **options) as consumer:
            await until(lambda: consumer.stats.acked == 8)
        assert (good, consumer.stats.dead_lettered) == (4, 4)

    asyncio.run(scenario())


def test_a_store_of_finished_ids_that_is_locked_for_a_while_costs_no_slot(
    memory: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await memory.send([])
        path = tmp_path / "finished.db"
        log = Log()
        database = SqliteDatabase(path, busy_s=0.1)
        options = {"window": 2, "finished_store": database, **memory.arguments}
        async with Consumer(memory.url, handler=log, **options) as consumer:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN EXCLUSIVE")
            await memory.send(bodies(6))
            await until(lambda: caplog.text.count("the store of finished ids does not answer") >= 2)
            other.execute("ROLLBACK")
            await until(lambda: consumer.stats.acked == 6)
        other.close()
        database.close()
        assert len(log.ids) == len(set(log.ids)) == 6

    asyncio.run(scenario())


def test_the_same_id_in_two_channels_of_a_pattern_is_handled_twice(memory: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        database = SqliteDatabase(tmp_path / "finished.db")
        handled: list[bytes] = []

        async def handle(message: Message) -> None:
            handled.append(message.body)

        async with await connect(memory.url) as broker:
            names = [f"{memory.name}.{word}" for word in ("orders", "invoices")]
            for name in names:
                await broker.declare(name)
            options = {"channel": f"{memory.name}.*", "group": "all", "finished_store": database}
            async with Consumer(memory.url, handler=handle, **options) as consumer:  # type: ignore[arg-type]
                for count, name in enumerate((*names, names[0]), 1):  # the last one is a repeat
                    sender = await broker.sender(name)
                    assert (await sender.send_batch([Message(name.encode(), id="17")]))[0].ok
                    await until(lambda count=count: consumer.stats.acked == count)  # type: ignore[misc]
        database.close()
        assert sorted(handled) == sorted(name.encode() for name in names)
        assert consumer.stats.repeats == 1

    asyncio.run(scenario())


def test_finished_messages_are_remembered_across_restarts(memory: Any, tmp_path: Path) -> None:
    async def consume(log: Log) -> int:
        database = SqliteDatabase(tmp_path / "finished.db")
        async with Consumer(memory.url, handler=log, finished_store=database, **memory.arguments) as consumer:
            await until(lambda: consumer.stats.acked == 1)
        database.close()
        return int(consumer.stats.repeats)

    async def scenario() -> None:
        message = Message(b"once")
        await memory.send([])
        log = Log()
        for repeats in (0, 1):  # a publisher that was not sure sends it again
            async with await connect(memory.url) as broker:
                sender = await broker.sender(memory.name)
                await sender.send_batch([message])
            assert await consume(log) == repeats
        assert log.ids == [message.id]

    asyncio.run(scenario())


# --- goals -------------------------------------------------------------------------------------------------------


def test_a_goal_is_held_by_the_window_and_can_change_while_it_runs(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(4000))
        consumer = Consumer(
            memory.url, handler=Log(lambda _: asyncio.sleep(0.05)), goal="rate=100", **memory.arguments
        )
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 4)
            assert consumer.window == pytest.approx(100 * 0.05, rel=0.5)  # Little's law, whatever the machine
            consumer.goal = Rate(300.0)
            before = len(consumer.steps())
            await until(lambda: len(consumer.steps()) >= before + 3)
            assert consumer.window == pytest.approx(300 * 0.05, rel=0.5)
            assert {record.setpoint for record in consumer.steps()[before + 1 :]} == {300.0}

    asyncio.run(scenario())


def test_advise_and_shadow_leave_the_window_alone(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(400))
        consumer = Consumer(
            memory.url,
            handler=Log(lambda _: asyncio.sleep(0.05)),
            goal="rate=20",
            mode="shadow",
            window=7,
            period_s=0.2,
            **memory.arguments,
        )
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 6)
            assert consumer.window == 7
            assert consumer._receiver is not None
            assert consumer._receiver.window == 7
            proposed = consumer.steps()[-1].proposed
            assert isinstance(proposed, float)
            assert proposed < 7 / 2  # it would have taken less

    asyncio.run(scenario())


def test_a_rate_that_does_not_depend_on_the_window_is_explained_and_not_fought(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(3000))
        alone = asyncio.Lock()

        async def one_at_a_time(_: Message) -> None:
            async with alone:
                await asyncio.sleep(0.01)

        consumer = Consumer(
            memory.url, handler=Log(one_at_a_time), goal="rate=1000", period_s=0.25, **memory.arguments
        )
        async with consumer:
            await until(lambda: "out of reach" in consumer.status)
            said, held = consumer.status, consumer.window
            assert "the handlers are the limit; reachable is about " in said
            reachable = float(said.split("reachable is about ")[1].split("/s")[0])
            assert 20 < reachable <= 105  # 10 ms each, one at a time
            before = len(consumer.steps())
            await until(lambda: len(consumer.steps()) >= before + 10)
            assert consumer.window <= held * 1.5  # it rests, but for a careful try

    asyncio.run(scenario())


def test_an_empty_queue_does_not_open_the_window(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send([])
        log = Log(lambda _: asyncio.sleep(0.01))
        consumer = Consumer(memory.url, handler=log, goal="rate=400", period_s=0.25, **memory.arguments)
        async with consumer, await connect(memory.url) as broker:
            sender = await broker.sender(memory.name)
            while len(consumer.steps()) < 30:
                await sender.send_batch([Message(b"now and then")])
                await asyncio.sleep(0.05)
            assert consumer.window < 12  # 400/s of 10 ms are 4 places; never the limit
            assert "the queue had no more" in consumer.status

    asyncio.run(scenario())


def test_capacity_stops_at_what_the_handlers_can_take(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(8000))
        log = Log(lambda _: asyncio.sleep(0.02))
        consumer = Consumer(
            memory.url, handler=log, goal=Capacity(), concurrency=8, period_s=0.25, **memory.arguments
        )
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 20)
            assert log.most == 8
            assert 6 < consumer.window < 40

    asyncio.run(scenario())


def test_pacing_hands_messages_over_one_by_one(memory: Any) -> None:
    async def scenario() -> None:
        await memory.send(bodies(300))
        times: list[float] = []

        async def handle(_: Message) -> None:
            times.append(time.monotonic())

        consumer = Consumer(
            memory.url, handler=handle, goal="rate=50", pacing=True, window=50, period_s=0.2, **memory.arguments
        )
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 2)
            first = len(times)
            await until(lambda: len(times) >= first + 30)
        taken = times[first : first + 30]
        assert taken[-1] - taken[0] >= 29 / 50 - 0.03  # never faster than the goal, but for the burst

    asyncio.run(scenario())


# --- on real brokers ---------------------------------------------------------------------------------------------


def test_the_window_is_never_exceeded(channel: Any) -> None:
    async def scenario() -> None:
        ids = await channel.send(bodies(200))
        log = Log(lambda _: asyncio.sleep(0.02))
        consumer = Consumer(channel.url, handler=log, goal="rate=5000", max_window=5, **channel.arguments)
        async with consumer:
            await until(lambda: len(log.ids) == 200)
        assert log.most == 5
        assert Counter(log.ids) == Counter(ids)

    asyncio.run(scenario())


def test_what_was_acknowledged_is_not_handled_again(channel: Any) -> None:
    async def scenario() -> None:
        ids = await channel.send(bodies(120))
        log = Log()
        for wanted in (40, 120):  # a consumer stops in the middle, another goes on
            consumer = Consumer(channel.url, handler=log, window=4, **channel.arguments)
            async with consumer:
                await until(lambda wanted=wanted: len(log.ids) >= wanted)  # type: ignore[misc]  # mypy and defaults
        assert Counter(log.ids) == Counter(ids)

    asyncio.run(scenario())


def test_dead_letters_can_be_left_to_the_broker(rabbitmq: RabbitMqNode) -> None:
    queue, dead = fresh(), fresh()
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.amqp_url))
    channel = connection.channel()
    channel.queue_declare(dead)
    channel.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for body in (b"good", b"bad"):
        channel.basic_publish("", queue, body)

    async def scenario() -> None:
        async def handle(message: Message) -> None:
            if message.body == b"bad":
                raise RuntimeError("bad")

        consumer = Consumer(
            rabbitmq.amqp_url, queue=queue, handler=handle, retries=QUICK, dead_letter_exchange=True
        )
        async with consumer:
            await until(lambda: consumer.stats.dead_lettered == 1 and consumer.stats.acked == 1)

    asyncio.run(scenario())
    got = None
    while got is None:
        _, properties, got = channel.basic_get(dead, auto_ack=True)
    assert got == b"bad"
    assert properties.headers["x-first-death-reason"] == "rejected"
    connection.close()


@pytest.mark.parametrize("place", ["memory", "sqlite", "rabbitmq"])
def test_messages_are_not_rejected_where_no_dead_letter_exchange_gets_them(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    queue = fresh()
    urls = {"memory": f"memory://{queue}", "sqlite": f"sqlite:///{tmp_path / 'broker.db'}"}
    if place == "rabbitmq":
        node: RabbitMqNode = request.getfixturevalue("rabbitmq")
        urls[place] = node.url

    async def scenario() -> None:
        async with await connect(urls[place]) as broker:
            await broker.declare(queue)
            sender = await broker.sender(queue)
            await sender.send_batch([Message(b"bad")])
            consumer = Consumer(urls[place], queue=queue, handler=print, dead_letter_exchange=True)
            while await broker.has_dead_letter_exchange(queue) is None:  # RabbitMQ reports policies a bit later
                await asyncio.sleep(0.1)
            with pytest.raises(Unsupported, match="has no dead-letter exchange"):
                await consumer.run()
            assert await broker.depth(queue) == 1

    asyncio.run(scenario())


def test_messages_that_fail_together_share_one_sender_to_their_dead_letters(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_sender = MemoryBroker.sender

    async def sender(self: MemoryBroker, channel: str, **options: Any) -> Any:
        opened.append(channel)
        await asyncio.sleep(0.01)
        return await open_sender(self, channel, **options)

    async def scenario() -> None:
        await memory.send(bodies(30))
        monkeypatch.setattr(MemoryBroker, "sender", sender)

        async def handle(_message: Message) -> None:
            raise RuntimeError("bad")

        consumer = Consumer(memory.url, handler=handle, retries=RetryPolicy(0), window=30, **memory.arguments)
        async with consumer:
            await until(lambda: consumer.stats.dead_lettered == 30)
        assert opened == [f"{memory.name}.dead"]

    asyncio.run(scenario())


def test_a_pattern_that_covers_its_own_dead_letters_does_not_handle_them() -> None:
    name = fresh()

    async def scenario() -> None:
        calls = 0

        async def handle(_message: Message) -> None:
            nonlocal calls
            calls += 1
            raise RuntimeError("bad")

        async with await connect(f"memory://{name}") as broker:
            await broker.declare(f"{name}.a")
            consumer = Consumer(
                f"memory://{name}", channel=f"{name}.#", group="g", handler=handle, retries=RetryPolicy(0)
            )
            async with consumer:
                sender = await broker.sender(f"{name}.a")
                await sender.send_batch([Message(b"bad")])
                await until(lambda: consumer.stats.acked == 2)
            assert calls == 1
            assert await broker.depth(f"{name}.all.dead") == 1

    asyncio.run(scenario())


def test_dead_letters_are_stored_on_every_broker(channel: Any) -> None:
    async def scenario() -> None:
        await channel.send([b"good", b"bad"])

        async def handle(message: Message) -> None:
            if message.body == b"bad":
                raise RuntimeError("bad")

        consumer = Consumer(channel.url, handler=handle, retries=QUICK, **channel.arguments)
        async with consumer:
            await until(lambda: consumer.stats.acked == 2)
        assert consumer.stats.dead_lettered == 1
        assert await waiting(channel.url, f"{channel.name}.dead") == 1

    asyncio.run(scenario())
