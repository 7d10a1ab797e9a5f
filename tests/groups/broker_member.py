"""A member of a group that reads a broker, with an effect for each message in a sink that all members share.

Messages of a queue are numbered. The sink has the number that comes next: one that was applied before is a repeat
and has no effect, one that comes too early shows that the order was lost, or a message.

    python -m tests.groups.broker_member STORE SINK NAME QUEUES URL TOPIC
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from contextlib import suppress

from flyball.brokers import connect
from flyball.brokers.port import Delivery
from flyball.consumer.membership import member_url
from flyball.groups.config import GroupConfig
from flyball.groups.member import GroupMember
from flyball.groups.policy.group import Queue
from flyball.groups.readers.open import open_readers
from flyball.store import Fenced, SqliteDatabase
from flyball.store.generations import check_generation
from flyball.store.protocol import Transaction
from tests.groups.member_process import GROUP, HEARTBEAT_S, SESSION_S

WINDOW = 8


class Sink:
    """Applies each message once, in order, and nothing from an owner of before."""

    def __init__(self, database: SqliteDatabase, member: str) -> None:
        self._database, self._member = database, member

    def apply(self, queue: Queue, number: int, generation: int | None) -> None:
        def effect(transaction: Transaction) -> None:
            if generation is not None:
                check_generation(transaction, GROUP, queue, generation)
            row = transaction.execute("SELECT next FROM position WHERE number = ?", (queue[1],)).fetchone()
            due = 0 if row is None else int(row[0])
            if number > due:
                transaction.execute("INSERT INTO early VALUES (?, ?, ?, ?)", (queue[1], number, due, self._member))
            if number != due:
                return
            transaction.execute(
                "INSERT INTO effect VALUES (?, ?, ?, ?, ?)",
                (queue[1], number, self._member, generation, time.monotonic()),
            )
            transaction.execute(
                "INSERT INTO position VALUES (?, ?) ON CONFLICT (number) DO UPDATE SET next = excluded.next",
                (queue[1], number + 1),
            )

        self._database.write(effect)


def queue_of(delivery: Delivery, topic: str) -> Queue:
    if delivery.partition is not None:
        return topic, delivery.partition
    return topic, int(delivery.channel.rpartition(".")[2])


async def run(store: str, sink: str, name: str, queues: int, url: str, topic: str) -> None:
    config = GroupConfig(
        name=GROUP,
        topics={topic: queues},
        store=store,
        member=name,
        heartbeat_s=HEARTBEAT_S,
        session_timeout_s=SESSION_S,
        coalesce_s=HEARTBEAT_S,
        release_timeout_s=1.0,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with SqliteDatabase(sink, durability="process") as database:
        async with await connect(member_url(url, config)) as broker:
            readers = open_readers(broker, GROUP, store, window=WINDOW)
            member = GroupMember(config, readers, window=lambda: WINDOW)
            readers.receiver.may_hand_out = lambda: member.may_read
            effects = Sink(database, name)

            async def handle(delivery: Delivery, queue: Queue) -> None:
                while True:
                    generation = member.owned.get(queue)
                    if generation is None and not readers.switches:
                        return  # another member gets it
                    try:
                        await asyncio.to_thread(effects.apply, queue, int(delivery.message.body), generation)
                    except Fenced:
                        await asyncio.sleep(HEARTBEAT_S / 5)  # until this member knows it, too
                    else:
                        await readers.receiver.ack(delivery)
                        return

            async def work() -> None:
                while True:
                    await asyncio.sleep(0)
                    for delivery in await readers.receiver.receive(WINDOW, timeout_s=1.0):
                        await handle(delivery, queue_of(delivery, topic))

            await member.start()
            working = asyncio.create_task(work())
            with suppress(asyncio.CancelledError):
                await asyncio.wait((working, asyncio.ensure_future(stop.wait())), return_when="FIRST_COMPLETED")
            if working.done():
                working.result()
            await member.stop()
            working.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {sys.argv[3]} %(message)s")
    _store, _sink, _name, _queues, _url, _topic = sys.argv[1:]
    asyncio.run(run(_store, _sink, _name, int(_queues), _url, _topic))
