"""The embedded broker: messages a second through a queue, events a second out of a log, and both when full.

Durable means `synchronous=FULL`: every answer to a sender comes after an fsync.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path

from flyball.brokers import Broker, Message, connect
from flyball.brokers.port import Kind
from flyball.lab.bench import BenchContext, Row

_BODY_BYTES = 256
_BATCH = 1000
_FEW, _MANY = 10_000, 5_000_000


def cases(context: BenchContext) -> Iterator[Row]:
    context.note("sqlite: durability=power, every answer after an fsync (filling before a measurement: process)")
    repeats = 3 if context.quick else 5
    many = _MANY // 10 if context.quick else _MANY
    rate = _median(
        lambda at: _through_queue(context.workdir / f"queue{at}.db", 60_000 if context.quick else 150_000), repeats
    )
    yield context.row("sqlite queue", rate, "msg/s", goal=30_000, better="higher")
    log = context.workdir / "log.db"
    asyncio.run(_fill(log, "log", 300_000))
    rate = _median(lambda _: asyncio.run(_read_log(log, 0, 300_000)), repeats)
    yield context.row("sqlite log", rate, "events/s", goal=300_000, better="higher")
    log.unlink()
    context.note(f"filling with {many:,} messages")
    few, full = asyncio.run(_compare_few_and_many(context.workdir, "queue", _queue_cost_s, many))
    yield context.row("sqlite queue flat", full, "s/msg", peer=few, peer_name=f"{_FEW:,} stored", goal=1.2)
    few, full = asyncio.run(_compare_few_and_many(context.workdir, "log", _log_cost_s, many))
    yield context.row("sqlite log flat", full, "s/event", peer=few, peer_name=f"{_FEW:,} stored", goal=1.2)


def _median(measure: Callable[[int], float], repeats: int) -> float:
    return statistics.median(measure(at) for at in range(repeats))


def messages(count: int) -> list[Message]:
    return [Message(at.to_bytes(8) * (_BODY_BYTES // 8)) for at in range(count)]


# --- through a queue: one process sends, two receive and acknowledge ---------------------------------------------


def _through_queue(path: Path, count: int) -> float:
    """Measure messages a second from the first send until the last acknowledgement."""
    processes = multiprocessing.get_context("spawn")
    done, ready, go = processes.Value("q", 0), processes.Semaphore(0), processes.Event()
    asyncio.run(_declare(path))
    readers = [
        processes.Process(target=_reader, args=(str(path), count, done, ready, go), daemon=True) for _ in range(2)
    ]
    for reader in readers:
        reader.start()
    batch = messages(count)
    for _ in readers:
        ready.acquire()
    started = time.perf_counter()
    asyncio.run(_send_all(path, batch))
    deadline = time.monotonic() + 300
    while done.value < count and time.monotonic() < deadline:
        time.sleep(0.001)
    elapsed = time.perf_counter() - started
    go.set()
    for reader in readers:
        reader.join(30)
    assert done.value == count, f"{done.value} of {count} messages came through"
    path.unlink()
    return count / elapsed


async def _declare(path: Path) -> None:
    async with await connect(f"sqlite:///{path}") as broker:
        await broker.declare("bench")


async def _send_all(path: Path, batch: list[Message]) -> None:
    async with await connect(f"sqlite:///{path}") as broker:
        sender = await broker.sender("bench")
        for at in range(0, len(batch), _BATCH):
            results = await sender.send_batch(batch[at : at + _BATCH])
            assert all(result.ok for result in results)


def _reader(path: str, count: int, done: Synchronized[int], ready: Semaphore, go: Event) -> None:
    async def work() -> None:
        async with await connect(f"sqlite:///{path}") as broker:
            receiver = await broker.receiver("bench", window=2 * _BATCH)
            ready.release()
            while done.value < count and not go.is_set():
                got = await receiver.receive(_BATCH, timeout_s=0.05)
                await receiver.ack(*got)
                with done.get_lock():
                    done.value += len(got)

    asyncio.run(work())


# --- out of a log ------------------------------------------------------------------------------------------------


async def _fill(path: Path, kind: Kind, count: int) -> None:
    async with await connect(f"sqlite:///{path}?durability=process") as broker:
        await broker.declare("bench", kind)
        sender = await broker.sender("bench")
        batch = messages(_BATCH)
        for _ in range(count // _BATCH):
            await sender.send_batch(batch)


async def _read_log(path: Path, start: int, count: int) -> float:
    async with await connect(f"sqlite:///{path}") as broker:
        started = time.perf_counter()
        count_read = 0
        async for records in broker.read("bench", 0, start, start + count):
            count_read += len(records)
        assert count_read == count
        return count / (time.perf_counter() - started)


# --- the cost of a message when much is stored -------------------------------------------------------------------


MeasureCost = Callable[[Broker, int], Awaitable[float]]


async def _compare_few_and_many(
    folder: Path, kind: Kind, turn: MeasureCost, many: int, turns: int = 200
) -> tuple[float, float]:
    """Measure the median seconds a message with few and with many stored, alternately, so that other load affects
    both alike."""
    sizes = (_FEW, many)
    paths = [folder / f"{kind}{stored}.db" for stored in sizes]
    for path, stored in zip(paths, sizes, strict=True):
        await _fill(path, kind, stored)
    costs: tuple[list[float], list[float]] = ([], [])
    async with await connect(f"sqlite:///{paths[0]}") as few, await connect(f"sqlite:///{paths[1]}") as full:
        for _ in range(turns):
            for broker, stored, cell in zip((few, full), sizes, costs, strict=True):
                cell.append(await turn(broker, stored) / _BATCH)
    for path in paths:
        path.unlink()
    return statistics.median(costs[0]), statistics.median(costs[1])


async def _queue_cost_s(broker: Broker, stored: int) -> float:
    """Measure the seconds to send, receive and acknowledge a batch while `stored` other messages wait."""
    sender, receiver = await broker.sender("bench"), await broker.receiver("bench", window=_BATCH)
    batch = messages(_BATCH)
    started = time.perf_counter()
    await sender.send_batch(batch)
    await receiver.ack(*await receiver.receive(_BATCH))
    elapsed = time.perf_counter() - started
    assert await broker.depth("bench") == stored
    await receiver.close()
    return elapsed


async def _log_cost_s(broker: Broker, stored: int) -> float:
    """Measure the seconds to append a batch and to read one from the middle of `stored` others."""
    sender = await broker.sender("bench")
    batch = messages(_BATCH)
    middle = stored // 2 - stored // 2 % _BATCH
    started = time.perf_counter()
    await sender.send_batch(batch)
    async for records in broker.read("bench", 0, middle, middle + _BATCH):
        assert len(records) == _BATCH
    return time.perf_counter() - started
