"""Handlers of every shape: a message is acknowledged when the work that its handler started is over."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest

from flyball import Consumer
from flyball.brokers import Message, connect
from flyball.consumer.policy.retry import RetryPolicy
from flyball.errors import InvalidValue
from tests.consumer.queues import ChannelUnderTest, until

Work = Callable[[Message], Awaitable[None]]


def traced(work: Work) -> Callable[[Message], Any]:
    """An ordinary decorator, as one for logging is written."""

    @functools.wraps(work)
    def inner(message: Message) -> Any:
        return work(message)

    return inner


class Service:
    """An object whose method returns what is to be awaited."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, message: Message) -> Awaitable[None]:
        return self._work(message)


class Later:
    """Neither a coroutine nor a future, and returns itself when awaited, as a pool of connections does."""

    def __init__(self, work: Awaitable[None]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, Later]:
        yield from self._work.__await__()
        return self


def generator_based(work: Work) -> Any:
    @types.coroutine
    def handle(message: Message) -> Generator[Any, None, None]:
        yield from work(message).__await__()

    return handle


def task_of(loop: asyncio.AbstractEventLoop, work: Work, message: Message) -> asyncio.Task[None]:
    """A task of the consumer's loop, made from a thread."""
    made: concurrent.futures.Future[asyncio.Task[None]] = concurrent.futures.Future()
    loop.call_soon_threadsafe(lambda: made.set_result(asyncio.ensure_future(work(message))))
    return made.result()


async def forgot_to_await(work: Work, message: Message) -> Any:
    return work(message)


SHAPES: dict[str, Callable[[asyncio.AbstractEventLoop, Work], Any]] = {
    "function": lambda _, work: work,
    "lambda": lambda _, work: lambda message: work(message),
    "partial": lambda _, work: functools.partial(work),
    "partial of a lambda": lambda _, work: functools.partial(lambda function, message: function(message), work),
    "decorated": lambda _, work: traced(work),
    "object": lambda _, work: Service(work),
    "awaitable object": lambda _, work: lambda message: Later(work(message)),
    "generator-based": lambda _, work: generator_based(work),
    "task": lambda loop, work: lambda message: task_of(loop, work, message),
    "future of a thread": lambda loop, work: (
        lambda message: asyncio.run_coroutine_threadsafe(work(message), loop)  # type: ignore[arg-type]  # a coroutine
    ),
    "forgotten await": lambda _, work: functools.partial(forgot_to_await, work),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_handler_returns_is_awaited_before_the_message_is_acknowledged(
    memory: ChannelUnderTest, shape: str
) -> None:
    async def scenario() -> None:
        ids = await memory.send([b"%d" % number for number in range(20)])
        gate = asyncio.Event()
        begun: list[str] = []
        handled: list[str] = []
        threads: set[int] = set()

        async def work(message: Message) -> None:
            begun.append(message.id)
            await gate.wait()
            threads.add(threading.get_ident())
            handled.append(message.id)

        handler = SHAPES[shape](asyncio.get_running_loop(), work)
        async with Consumer(memory.url, handler=handler, window=5, **memory.arguments) as consumer:
            await until(lambda: len(begun) == 5)
            assert consumer.stats.acked == 0
            gate.set()
            await until(lambda: consumer.stats.acked == 20)
            assert sorted(handled) == sorted(ids)
            assert consumer.stats.failed == 0
        assert threads == {threading.get_ident()}  # on the event loop, whoever called the handler

    asyncio.run(scenario())


async def dead_letters(channel: ChannelUnderTest, handler: Any, **options: Any) -> dict[bytes, str]:
    """What became of the messages that failed: body and reason."""
    async with Consumer(channel.url, handler=handler, **options, **channel.arguments) as consumer:
        await until(lambda: consumer.stats.acked == 3)
        stats = consumer.stats
    assert stats.failed == stats.dead_lettered + stats.retried
    async with await connect(channel.url) as broker:
        receiver = await broker.receiver(f"{channel.name}.dead")
        dead = await receiver.receive(timeout_s=30.0)
    return {each.message.body: str(each.message.headers["flyball-error"]) for each in dead}


def test_a_failure_of_what_is_awaited_is_a_failure_of_the_message(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"good", b"bad", b"good"])
        tries = 0

        async def work(message: Message) -> None:
            nonlocal tries
            await asyncio.sleep(0)
            if message.body == b"bad":
                tries += 1
                raise ValueError("no such customer")

        quick = RetryPolicy(retries=2, first_s=0.01, longest_s=0.02)
        dead = await dead_letters(memory, lambda message: work(message), retries=quick)
        assert dead == {b"bad": "ValueError: no such customer (after 3 tries)"}
        assert tries == 3

    asyncio.run(scenario())


def test_what_is_awaited_counts_for_the_time_limit_and_costs_no_thread(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"good", b"hangs", b"good"])

        async def work(message: Message) -> None:
            if message.body == b"hangs":
                await asyncio.Event().wait()

        others = set(threading.enumerate())
        dead = await dead_letters(
            memory, lambda message: work(message), retries=0, handler_timeout_s=0.2, concurrency=1
        )
        assert dead == {b"hangs": "TimeoutError: the handler took longer than 0.2 s (after 1 try)"}
        await until(lambda: not {one for one in threading.enumerate() if one.name == "flyball-handler"} - others)

    asyncio.run(scenario())


def test_a_time_limit_of_the_handlers_own_is_reported_as_it_is(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"good", b"late", b"good"])

        async def work(message: Message) -> None:
            if message.body == b"late":
                raise TimeoutError

        dead = await dead_letters(memory, work, retries=0)
        assert dead == {b"late": "TimeoutError (after 1 try)"}

    asyncio.run(scenario())


def test_cancelling_what_is_awaited_fails_the_message_and_frees_its_slot(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"good", b"cancelled", b"good"])

        async def work(message: Message) -> None:
            if message.body == b"cancelled":
                helper = asyncio.ensure_future(asyncio.Event().wait())
                helper.cancel()
                await helper

        dead = await dead_letters(memory, lambda message: work(message), retries=0, window=1)
        assert dead == {b"cancelled": "RuntimeError: a task that the handler awaited was cancelled (after 1 try)"}

    asyncio.run(scenario())


def test_concurrency_counts_what_is_awaited(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"x"] * 40)
        running = most = 0

        async def work(_: Message) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.005)
            running -= 1

        consumer = Consumer(memory.url, handler=lambda message: work(message), concurrency=3, **memory.arguments)
        async with consumer:
            await until(lambda: consumer.stats.acked == 40)
        assert most == 3

    asyncio.run(scenario())


def test_the_residence_time_includes_what_is_awaited(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"x"] * 400)
        consumer = Consumer(
            memory.url,
            handler=lambda _: asyncio.sleep(0.05),
            goal="rate=100",
            mode="shadow",
            window=4,
            period_s=0.2,
            **memory.arguments,
        )
        async with consumer:
            await until(lambda: len(consumer.steps()) >= 4)
            assert (consumer.stats.residence_s or 0.0) >= 0.05

    asyncio.run(scenario())


# --- generators: calling one runs none of it ---------------------------------------------------------------------


async def async_rows(message: Message) -> AsyncIterator[Message]:
    yield message


def rows(message: Message) -> Iterator[Message]:
    yield message


class Rows:
    async def __call__(self, message: Message) -> AsyncIterator[Message]:
        yield message


@pytest.mark.parametrize("handler", [async_rows, rows, Rows(), functools.partial(rows)])
def test_a_generator_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidValue, match=r"a handler must not yield: calling .* makes a generator"):
        Consumer("memory://x", queue="q", handler=handler)


def test_a_generator_behind_a_lambda_fails_the_message_in_words(memory: ChannelUnderTest) -> None:
    async def scenario() -> None:
        await memory.send([b"good", b"rows", b"async rows"])

        def handle(message: Message) -> Any:
            if message.body == b"good":
                return None
            return rows(message) if message.body == b"rows" else async_rows(message)

        dead = await dead_letters(memory, handle, retries=0)
        why = "of which nothing has run: return None or something to await (after 1 try)"
        assert dead == {
            b"rows": f"TypeError: the handler returned a generator, {why}",
            b"async rows": f"TypeError: the handler returned an asynchronous generator, {why}",
        }

    asyncio.run(scenario())
