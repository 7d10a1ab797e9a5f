"""A clustered queue in virtual time: nodes and clients are fluid, the decisions are those of `cluster.policy`.

A node spends one operation on each message that is published, delivered, or exchanged with another node, and has a
limited number of operations a second; optionally the fewer, the more messages wait (as the document found for
JORAM). Clients are alike: a producer sends and a consumer takes so many messages a second, unless the node is
slower or the queue is empty; then all clients of the node get the same part of what they ask for. A session pauses
while it moves, and a new node serves after a while. Messages are counted, so that none can be lost or made.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from flyball.cluster.policy import (
    AddNode,
    CapacityEstimator,
    CapacitySample,
    CapacityState,
    Decision,
    Event,
    Host,
    Join,
    Leave,
    MessagesMoved,
    MoveMessages,
    MoveSession,
    Node,
    NodeAdded,
    NodeBack,
    NodeLost,
    Reading,
    RemoveNode,
    Role,
    Rules,
    Session,
    SessionMoved,
    State,
    Status,
    Tick,
    step,
)
from flyball.errors import InvalidValue

_KNEE = 0.95
"""Part of a node's operations from which on clients wait for it."""


@dataclass(frozen=True, slots=True)
class NodeModel:
    """What a node can do. At `half_length` messages it is half as fast; None: the length does not matter."""

    operations_per_s: float = 3800.0
    half_length: float | None = None
    latency_s: float = 0.001
    """From publishing to the confirm, while nobody waits for the node."""

    def __post_init__(self) -> None:
        for name in ("operations_per_s", "half_length", "latency_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise InvalidValue(f"NodeModel.{name} must be a number > 0, got {value!r}")

    def rate(self, length: float) -> float:
        slower = 1.0 if self.half_length is None else 1.0 + length / self.half_length
        return self.operations_per_s / slower


@dataclass(frozen=True, slots=True)
class ClientModel:
    publish_per_s: float = 475.0
    consume_per_s: float = 237.5

    def __post_init__(self) -> None:
        for name in ("publish_per_s", "consume_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InvalidValue(f"ClientModel.{name} must be a number >= 0, got {value!r}")


@dataclass(slots=True)
class _Queue:
    """One node's queue. `window` values are since the last tick."""

    length: float = 0.0
    published: float = 0.0
    delivered: float = 0.0
    busy_s: float = 0.0
    latency_s: float = 0.0
    is_saturated: bool = False
    """By its clients alone, without the exchange of messages."""
    estimate: CapacityState = field(default_factory=CapacityState)


@dataclass(slots=True)
class _Exchange:
    source: str
    target: str
    left: float
    moved: float = 0.0


@dataclass(frozen=True, slots=True)
class TracePoint:
    """One second: rates are messages a second of the whole cluster."""

    time_s: float
    published_per_s: float
    delivered_per_s: float
    lengths: Mapping[str, float]
    nodes: int
    clients: int


class TwinCluster:
    """A cluster in virtual time; every decision is in `decisions`, with its time.

    >>> cluster = TwinCluster(Rules(), [Node("a", 12), Node("b", 12)])
    >>> ids = [cluster.join(role) for role in ("producer", "consumer", "consumer") * 4]
    >>> cluster.run(10.0)
    >>> round(cluster.trace[-1].delivered_per_s)
    1900
    """

    def __init__(
        self,
        rules: Rules,
        nodes: Iterable[Node],
        hosts: Iterable[Host] = (),
        *,
        client: ClientModel | None = None,
        node: NodeModel | None = None,
        models: Mapping[str, NodeModel] | None = None,
        sessions: Mapping[str, tuple[int, int]] | None = None,
        estimator: CapacityEstimator | None = None,
        step_s: float = 0.1,
    ) -> None:
        """`sessions`: producers and consumers that are there already, by node. `estimator`: measure capacities."""
        self.rules = rules
        self.client = client or ClientModel()
        self._model = node or NodeModel()
        self._models = dict(models or {})
        self._estimator = estimator
        self._step_s = step_s
        self.now_s = 0.0
        self._steps = 0
        self._ticks = 0
        self._joined = count(1)
        self.state = State(
            nodes={one.name: one for one in nodes},
            hosts={one.name: one for one in hosts},
            sessions={one.id: one for one in self._place(sessions or {})},
        )
        self._queues = {name: _Queue() for name in self.state.nodes}
        self._exchanges: list[_Exchange] = []
        self._later: list[tuple[float, int, Event]] = []
        self._order = count()
        self.published = 0.0
        self.delivered = 0.0
        self.trace: list[TracePoint] = []
        self.decisions: list[tuple[float, Decision]] = []

    def _place(self, sessions: Mapping[str, tuple[int, int]]) -> Iterable[Session]:
        for name, (producers, consumers) in sessions.items():
            for at in range(producers + consumers):
                yield Session(self._new_id(), "producer" if at < producers else "consumer", name)

    def _new_id(self) -> str:
        return f"s{next(self._joined)}"

    @property
    def length(self) -> float:
        """Messages that wait, those of lost nodes included."""
        return sum(queue.length for queue in self._queues.values())

    def join(self, role: Role) -> str:
        id = self._new_id()
        self.send(Join(self.now_s, id, role))
        return id

    def leave(self, id: str) -> None:
        self.send(Leave(self.now_s, id))

    def lose(self, name: str) -> None:
        """The node stops; its messages are on its disk."""
        self._exchanges = [one for one in self._exchanges if name not in (one.source, one.target)]
        self.send(NodeLost(self.now_s, name))

    def restore(self, name: str) -> None:
        self.send(NodeBack(self.now_s, name))

    def send(self, event: Event) -> None:
        """Tell the policy, and begin to carry out what it decides."""
        self.state, decisions = step(self.rules, self.state, event)
        self.decisions += [(self.now_s, decision) for decision in decisions]
        for decision in decisions:
            match decision:
                case MoveSession(session=id, target=target):
                    self._schedule(self.rules.move_s, SessionMoved(self.now_s, id, target))
                case AddNode(node=name):
                    self._queues.setdefault(name, _Queue())
                    if self.state.nodes[name].status is Status.ADDING:
                        self._schedule(self.rules.add_s, NodeAdded(self.now_s, name))
                case MoveMessages(source=source, target=target, count=amount):
                    self._exchanges.append(_Exchange(source, target, float(amount)))
                case RemoveNode(node=name):
                    if self._queues[name].length >= 1.0:
                        raise AssertionError(f"{name} is removed with {self._queues[name].length:.0f} messages")
                case _:
                    pass

    def _schedule(self, after_s: float, event: Event) -> None:
        at_s = self.now_s + after_s
        heapq.heappush(self._later, (at_s, next(self._order), replace(event, now_s=at_s)))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / self._step_s)):
            self._flow()
            self._steps += 1
            self.now_s = round(self._steps * self._step_s, 9)  # a sum of steps would drift
            while self._later and self._later[0][0] <= self.now_s + 1e-9:
                self.send(heapq.heappop(self._later)[2])
            if self.now_s >= self._ticks + 1 - 1e-9:
                self._ticks += 1
                self._tick()

    def _flow(self) -> None:
        """One step of all queues: everybody at a node gets the same part of what he asks for."""
        dt = self._step_s
        sessions = [one for one in self.state.sessions.values() if one.started_s is None]
        producers = Counter(one.node for one in sessions if one.role == "producer")
        consumers = Counter(one.node for one in sessions if one.role == "consumer")
        asked = {id(one): min(one.left, self.rules.exchange_per_s * dt) for one in self._exchanges}
        parts: dict[str, float] = {}
        for name, queue in self._queues.items():
            if not self.state.is_up(name):
                continue
            publish = producers[name] * self.client.publish_per_s * dt
            deliver = min(consumers[name] * self.client.consume_per_s * dt, queue.length + publish)
            exchange = sum(asked[id(one)] for one in self._exchanges if name in (one.source, one.target))
            total = publish + deliver + exchange
            able = self._models.get(name, self._model).rate(queue.length) * dt
            parts[name] = part = min(1.0, able / total) if total else 1.0
            queue.length += part * (publish - deliver)
            queue.published += part * publish
            queue.delivered += part * deliver
            self.published += part * publish
            self.delivered += part * deliver
            could = consumers[name] * self.client.consume_per_s * dt
            queue.busy_s += dt * (part * deliver / could if could else 0.0)
            queue.latency_s = self._latency(name, total / able)
            queue.is_saturated = publish + deliver > _KNEE * able
        self._move(asked, parts)

    def _latency(self, name: str, demand: float) -> float:
        """Flat up to the knee, then longer the more is asked for: as measured on real nodes."""
        base = self._models.get(name, self._model).latency_s
        return base if demand < _KNEE else base * 20.0 * max(1.0, demand) ** 2

    def _move(self, asked: Mapping[int, float], parts: Mapping[str, float]) -> None:
        ended: list[_Exchange] = []
        for one in self._exchanges:
            part = min(parts.get(one.source, 0.0), parts.get(one.target, 0.0))
            amount = min(part * asked[id(one)], self._queues[one.source].length)
            self._queues[one.source].length -= amount
            self._queues[one.target].length += amount
            one.left -= amount
            one.moved += amount
            if one.left < 0.5 or self._queues[one.source].length < 0.5:
                ended.append(one)
        for one in ended:
            self._exchanges.remove(one)
            self._schedule(0.0, MessagesMoved(self.now_s, one.source, one.target, round(one.moved)))

    def _tick(self) -> None:
        published = delivered = 0.0
        readings: dict[str, Reading] = {}
        for name, queue in self._queues.items():
            published += queue.published
            delivered += queue.delivered
            if self.state.is_up(name):
                waiting = round((1.0 - queue.busy_s) * self.state.consumers[name]) if queue.length < 1.0 else 0
                readings[name] = Reading(
                    # the rest of a message is none: counts are whole
                    round(queue.length),
                    max(0, waiting),
                    queue.delivered,
                    self._estimate(name, queue),
                    queue.is_saturated,
                )
            queue.published = queue.delivered = queue.busy_s = 0.0
        self.trace.append(
            TracePoint(
                self.now_s,
                published,
                delivered,
                {name: queue.length for name, queue in self._queues.items()},
                sum(node.status is Status.UP for node in self.state.nodes.values()),
                self.state.clients,
            )
        )
        self.send(Tick(self.now_s, readings))

    def _estimate(self, name: str, queue: _Queue) -> int | None:
        if self._estimator is None:
            return None
        sample = CapacitySample(
            self.now_s,
            self.state.producers[name],
            self.state.consumers[name],
            queue.published,
            queue.delivered,
            queue.latency_s,
            round(queue.length),
            queue.busy_s,
        )
        queue.estimate = self._estimator.update(queue.estimate, sample)
        value = self._estimator.capacity(queue.estimate).value
        return None if value is None else max(1, round(value))
