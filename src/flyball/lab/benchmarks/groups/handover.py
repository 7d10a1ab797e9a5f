"""How long a queue is unread while it changes hands.

Two members of a group with four busy queues; one of them leaves and joins again and again, so that two queues go
back and forth each time. The gap of a move is the time from the last message that the old owner began to handle to
the first that the new one did, through coordinator, store and broker. Messages come every 10 ms to each queue,
which is part of the gap.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from flyball.brokers import Message, connect
from flyball.brokers.port import Broker, Delivery, Sender
from flyball.groups.config import GroupConfig
from flyball.groups.member import GroupMember
from flyball.groups.readers.open import ConsumerReaders, open_readers
from flyball.lab.bench import BenchContext, Row
from flyball.lab.rigs.groups.partition_keys import partition_keys
from flyball.servers import ServerMissing
from flyball.servers.kafka import KafkaServer
from flyball.servers.rabbitmq import RabbitMqNode

TOPIC, QUEUES = "orders", 4
HEARTBEAT_S = 1.0
_EVERY_S, _WORK_S = 0.01, 0.002
_WINDOW = 16


def cases(context: BenchContext) -> Iterator[Row]:
    rounds = 5 if context.quick else 15
    with tempfile.TemporaryDirectory(dir=context.workdir) as folder:
        yield _row(context, "sqlite", f"sqlite:///{folder}/broker.db", rounds)
    with RabbitMqNode(plugins=()) as node:
        yield _row(context, "rabbitmq 3 classic", f"{node.amqp_url}?queue_type=classic", rounds)
    try:
        with RabbitMqNode(version=4, plugins=()) as node:
            yield _row(context, "rabbitmq 4 by priority", node.amqp_url, rounds, goal_ms=100.0)
    except ServerMissing as reason:
        context.note(f"  without RabbitMQ 4: {reason}")
    try:
        with KafkaServer() as server:
            server.start()
            yield _row(context, "kafka", server.url, rounds)
    except ServerMissing as reason:
        context.note(f"  without Kafka: {reason}")


def _row(context: BenchContext, name: str, url: str, rounds: int, goal_ms: float = 2e3 * HEARTBEAT_S) -> Row:
    with tempfile.TemporaryDirectory(dir=context.workdir) as folder:
        trial = asyncio.run(_measure(url, Path(folder) / "groups.db", rounds))
    gaps = trial.gaps_s()
    p99_s = gaps[max(0, -(-99 * len(gaps) // 100) - 1)]
    context.note(
        f"  {name}: {len(gaps)} moves, median {1e3 * gaps[len(gaps) // 2]:.0f} ms, {trial.out_of_order} of "
        f"{len(trial.begun)} out of order, {trial.repeats} repeated"
    )
    return context.row(f"handover gap {name}", 1e3 * p99_s, "ms unread, p99", goal=goal_ms)


@dataclass
class _Trial:
    """What was begun, by whom, when: (queue, number, member, time)."""

    begun: list[tuple[int, int, str, float]] = field(default_factory=list)

    def gaps_s(self) -> list[float]:
        """From the last message at one member to the first at the next, ascending."""
        gaps = []
        for queue in range(QUEUES):
            mine = [(member, at_s) for q, _, member, at_s in self.begun if q == queue]
            gaps += [after - before for (old, before), (new, after) in pairwise(mine) if new != old]
        return sorted(gaps)

    @property
    def out_of_order(self) -> int:
        numbers = [[number for q, number, _, _ in self.begun if q == queue] for queue in range(QUEUES)]
        return sum(after < before for each in numbers for before, after in pairwise(each))

    @property
    def repeats(self) -> int:
        return len(self.begun) - len({(queue, number) for queue, number, _, _ in self.begun})


async def _measure(url: str, store: Path, rounds: int) -> _Trial:
    trial = _Trial()
    async with await connect(url) as broker:
        if not broker.capabilities.queues:
            await broker.declare(TOPIC, "log", partitions=QUEUES)
        async with _member(url, store, "a", trial):
            publishing = asyncio.create_task(_publish(broker))
            try:
                for _ in range(rounds):
                    async with _member(url, store, "b", trial):
                        await _moved(trial, "b")
                        await asyncio.sleep(0.5)
                    await _moved(trial, "a")
                    await asyncio.sleep(0.5)
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
    return trial


async def _moved(trial: _Trial, member: str) -> None:
    """Wait until a member reads its share: the newcomer half of the queues, the one that stays all of them."""
    due_s = time.monotonic() + 60
    while time.monotonic() < due_s:
        last = {queue: name for queue, _, name, _ in trial.begun}
        if sum(name == member for name in last.values()) >= (QUEUES if member == "a" else QUEUES // 2):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(f"the queues did not come to member {member} within 60 s")


@asynccontextmanager
async def _member(url: str, store: Path, name: str, trial: _Trial) -> AsyncIterator[None]:
    config = GroupConfig(
        name="bench",
        topics={TOPIC: QUEUES},
        store=f"sqlite:///{store}",
        member=name,
        heartbeat_s=HEARTBEAT_S,
        coalesce_s=0.1,
    )
    async with await connect(url) as broker:
        readers = open_readers(broker, config.name, config.store, window=_WINDOW)
        member = GroupMember(config, readers, window=lambda: _WINDOW)
        await member.start()
        working = asyncio.create_task(_handle(readers, name, trial))
        try:
            yield
        finally:
            await member.stop(leave=True)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def _handle(readers: ConsumerReaders, member: str, trial: _Trial) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(_WORK_S)
        await readers.receiver.ack(delivery)

    while True:
        await asyncio.sleep(0)  # a receiver that is closed returns at once
        for delivery in await readers.receiver.receive(_WINDOW, timeout_s=1.0):
            queue, number = map(int, delivery.message.body.split())
            trial.begun.append((queue, number, member, time.monotonic()))
            task = asyncio.create_task(handle(delivery))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def _publish(broker: Broker) -> None:
    log = not broker.capabilities.queues
    senders: list[Sender] = (
        [await broker.sender(TOPIC)] * QUEUES
        if log
        else [await broker.sender(f"{TOPIC}.{queue}") for queue in range(QUEUES)]
    )
    keys = await partition_keys(broker, QUEUES) if log else [None] * QUEUES
    number = 0
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + _EVERY_S, time.monotonic())
        await asyncio.sleep(due_s - time.monotonic())
        await asyncio.gather(
            *(
                senders[queue].send_batch([Message(b"%d %d" % (queue, number), key=keys[queue])])
                for queue in range(QUEUES)
            )
        )
        number += 1
