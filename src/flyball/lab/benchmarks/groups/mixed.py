"""Members read different topics: the exact plan, a quick valid one before it, both beside Kafka's assignor.

`first`: nobody has anything; `leave`, `join`: one member does so from the exact plan before; `after quick`: the
exact plan from the quick one of `first`. Each shape of subscriptions is drawn with several seeds, and its figure
is that of the slowest. The shapes:

* half: every member reads every topic by the toss of a coin;
* sparse: ten topics a member;
* skewed: few topics have most of the queues and few members read most of the topics;
* nested: member k reads the first k topics;
* neighbours: a member reads the topics next to its own place, so that queues pass through many hands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from flyball.groups.policy.group import Claims, Group, Member
from flyball.groups.policy.level_fill import Ints
from flyball.groups.policy.load_blocks import Bools
from flyball.groups.policy.mixed import assign_mixed
from flyball.groups.policy.quick import assign_quickly
from flyball.groups.policy.sticky import assign_sticky
from flyball.lab.bench import BenchContext, Row
from flyball.lab.benchmarks.groups.timing import milliseconds
from flyball.lab.rigs.groups.kafka_assignor import run_kafka_assignor
from flyball.servers import ServerMissing

_Event: TypeAlias = tuple[Ints, Bools]
"""The owners before, and the subscriptions."""


def cases(context: BenchContext) -> Iterator[Row]:
    repeat = 1 if context.quick else 3
    seeds = range(context.seed, context.seed + (1 if context.quick else 3))
    yield from _one_topic_each(context, 5 if context.quick else 21)
    yield from _shape(context, "mixed 100 x 1000 x 100000", _half, (100, 100_000), seeds, repeat)
    yield from _quick(context, _half(np.random.default_rng(context.seed), 1_000), 50, max(3, repeat))
    case = "mixed 1000 x 1000 x 50000"
    yield from _shape(context, case, _half, (1_000, 50_000), seeds, repeat)
    for name, shape in (
        ("sparse", _sparse),
        ("skewed", _skewed),
        ("nested", _nested),
        ("neighbours", _neighbours),
    ):
        yield from _shape(context, f"{case} {name}", shape, (1_000, 50_000), seeds, repeat)
    for name, reads in (("half", _half(np.random.default_rng(context.seed), 1_000)), ("buckets", _buckets())):
        try:
            yield from _beside_kafka(context, name, reads, 50, max(3, repeat))
        except ServerMissing as reason:
            context.note(f"  not beside Kafka's assignor: {reason}")
            return


def _half(draw: np.random.Generator, topics: int) -> Bools:
    return draw.random((topics, 1_000)) < 0.5


def _sparse(draw: np.random.Generator, topics: int) -> Bools:
    return _with_readers(draw, draw.random((topics, 1_000)) < 10 / topics)


def _skewed(draw: np.random.Generator, topics: int) -> Bools:
    return _with_readers(draw, draw.random((topics, 1_000)) < np.clip(draw.pareto(1.0, 1_000) * 5 / topics, 0, 1))


def _nested(draw: np.random.Generator, topics: int) -> Bools:
    return _with_readers(draw, np.arange(topics)[:, None] / topics < (np.arange(1_000) + 1) / 1_000)


def _neighbours(draw: np.random.Generator, topics: int) -> Bools:
    distance = np.abs(np.arange(topics)[:, None] / topics - np.arange(1_000) / 1_000)
    return _with_readers(draw, distance < draw.uniform(0.002, 0.02, 1_000))


def _buckets() -> Bools:
    """Topics in five buckets, of which a member reads one and all before it."""
    bucket = np.arange(1_000) * 5 // 1_000
    return bucket[:, None] <= bucket[None, :]


def _with_readers(draw: np.random.Generator, reads: Bools) -> Bools:
    unread = np.flatnonzero(~reads.any(axis=1))
    reads[unread, draw.integers(0, reads.shape[1], unread.size)] = True
    return reads


def _sizes(shape: object, topics: int, queues: int) -> Ints:
    """Return the topic of each queue; skewed sizes follow Zipf's law."""
    weights = 1.0 / np.arange(1, topics + 1) if shape is _skewed else np.ones(topics)
    counts = np.maximum(1, np.floor(weights / weights.sum() * queues)).astype(np.int64)
    counts[0] += queues - counts.sum()
    return np.repeat(np.arange(topics), counts)


def _events(topic_of: Ints, reads: Bools) -> dict[str, _Event]:
    none, leaver = np.full(topic_of.size, -1), reads.shape[1] // 2
    without = reads.copy()
    without[:, leaver] = False
    plan = assign_mixed(topic_of, none, reads)
    return {
        "first": (none, reads),
        "leave": (np.where(plan == leaver, -1, plan), without),
        "join": (assign_mixed(topic_of, none, without), reads),
    }


def _shape(
    context: BenchContext,
    case: str,
    shape: Callable[[np.random.Generator, int], Bools],
    size: tuple[int, int],
    seeds: Sequence[int],
    repeat: int,
) -> Iterator[Row]:
    topics, queues = size
    topic_of = _sizes(shape, topics, queues)
    slowest: dict[str, float] = {}
    for seed in seeds:
        reads = shape(np.random.default_rng(seed), topics)
        events = _events(topic_of, reads)
        events["after quick"] = (assign_quickly(topic_of, events["first"][0], reads), reads)
        for event, (before, subscriptions) in events.items():
            spent = milliseconds(partial(_difference, assign_mixed, topic_of, before, subscriptions), repeat)
            slowest[event] = max(spent, slowest.get(event, 0.0))
    for event, spent in slowest.items():
        yield context.row(f"{case} {event}", spent, "ms", goal=500.0)


def _difference(
    assign: Callable[[Ints, Ints, Bools], Ints], topics: Ints, before: Ints, reads: Bools
) -> tuple[Ints, Ints]:
    after = assign(topics, before, reads)
    changed = np.flatnonzero(after != before)
    return changed, after[changed]


def _quick(context: BenchContext, reads: Bools, queues_each: int, repeat: int) -> Iterator[Row]:
    """The valid plan that a coordinator may carry out before the exact one."""
    topics, members = reads.shape
    topic_of = np.repeat(np.arange(topics), queues_each)
    for event, (before, subscriptions) in _events(topic_of, reads).items():
        case = f"mixed 1000 x 1000 x 50000 quick {event}"
        spent = milliseconds(partial(_difference, assign_quickly, topic_of, before, subscriptions), repeat)
        yield context.row(case, spent, "ms", goal=20.0)
        quick = np.bincount(assign_quickly(topic_of, before, subscriptions), minlength=members)
        best = np.bincount(assign_mixed(topic_of, before, subscriptions), minlength=members)
        ratio = float((quick**2).sum() / (best**2).sum())
        yield context.row(f"{case} squared loads", ratio, "of the best", goal=1.001)


def _beside_kafka(context: BenchContext, shape: str, reads: Bools, queues_each: int, repeat: int) -> Iterator[Row]:
    """Kafka's assignor on the same group, each on its own first plan: time, balance and moves."""
    topics, members = reads.shape
    topic_of = np.repeat(np.arange(topics), queues_each)
    events, name = _events(topic_of, reads), "Kafka's UniformAssignor"
    for event, peer in run_kafka_assignor(reads, queues_each, members // 2, repeat).items():
        before, subscriptions = events[event]
        for kind, assign in (("quick", assign_quickly), ("exact", assign_mixed)):
            spent = milliseconds(partial(_difference, assign, topic_of, before, subscriptions), repeat)
            case = f"beside Kafka {shape} {kind} {event}"
            yield context.row(case, spent, "ms", peer=peer.milliseconds, peer_name=name)
        after = assign_mixed(topic_of, before, subscriptions)
        squares = float((np.bincount(after, minlength=members) ** 2).sum())
        yield context.row(
            f"beside Kafka {shape} {event} squared loads", squares, "", peer=peer.squares, peer_name=name, goal=1.0
        )
        moves = int(np.count_nonzero((before >= 0) & (after != before)))
        context.note(f"  {shape} {event}: {moves} queues moved between members in ours, {peer.moves} in Kafka's")


def _one_topic_each(context: BenchContext, repeat: int) -> Iterator[Row]:
    """12 processes of 7 consumers, each with a topic of its own, 12 queues a topic; one process leaves."""
    members = {
        f"process{process:02d}-{topic}": Member(frozenset({f"topic{topic}"}))
        for process in range(12)
        for topic in range(7)
    }
    group = Group({f"topic{topic}": range(12) for topic in range(7)}, members)
    claims = Claims(assign_sticky(group).assignment)
    left = Group(
        group.topics, {name: member for name, member in members.items() if not name.startswith("process03")}
    )
    spent = milliseconds(lambda: assign_sticky(left, claims), repeat)
    yield context.row("84 members", spent, "ms", goal=5.0)
