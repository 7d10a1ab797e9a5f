"""Queues of a topic on named brokers, and the order in which RocketMQ's strategies go through them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias


@dataclass(frozen=True, slots=True, order=True)
class BrokerQueue:
    topic: str
    broker: str
    number: int


Allocate: TypeAlias = Callable[[Sequence[BrokerQueue], Sequence[str]], dict[str, list[BrokerQueue]]]
"""From the queues of one topic and the members, both in order, to the queues of each member."""


def java_order(text: str) -> bytes:
    """The key by which Java sorts strings: UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def sort_members(members: Iterable[str]) -> list[str]:
    return sorted(set(members), key=java_order)


def sort_queues(queues: Iterable[BrokerQueue]) -> list[BrokerQueue]:
    return sorted(set(queues), key=lambda queue: (java_order(queue.topic), java_order(queue.broker), queue.number))


def allocate_by_topic(
    queues: Iterable[BrokerQueue], members: Iterable[str], allocate: Allocate
) -> dict[str, list[BrokerQueue]]:
    """Allocate each topic by itself, and return what each member gets of all topics."""
    names = sort_members(members)
    result: dict[str, list[BrokerQueue]] = {name: [] for name in names}
    for _, of_topic in groupby(sort_queues(queues), key=lambda queue: queue.topic):
        for name, given in allocate(list(of_topic), names).items():
            result[name] += given
    return result
