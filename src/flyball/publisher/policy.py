"""What a publisher decides: when a batch leaves, how large it is, and when to look again. Pure.

    state = start(policy, now_s)
    state, decisions = decide(policy, state, event)

Events are what happened (`Accepted`, `Confirmed`, `Failed`, `Blocked` …), each with its time;
decisions are what to do now (`Send` so many messages) and when to come back (`wake_s`). The publisher and the twin
both run exactly this. Messages themselves are not known here, only how many there are: which ones leave first is
the store's affair.

One publish event, in the words of the publisher paper: every T_poll the store is looked at; if N messages wait, or
the first of them has waited for T, up to N are read and handed over, as far as the window (there: the number of
workers) has room; the rest of the batch is handed over as room comes. The controller sets N, T_poll and the
window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flyball.control.controllers.publishing.signals import Batching, PublisherMeasurement
from flyball.control.record import LoopRecord
from flyball.control.step import Action, Controller, Sample
from flyball.errors import InvalidValue

_PIECES_OF_WINDOW = 2
"""A batch that does not fit waits for all its room, or for half the window where that is smaller: brokers take
many messages at once for less, and what left in small pieces comes back, and leaves again, in small pieces."""
_URGENT_PART = 8
"""Beyond a full window this part of it is reserved for urgent messages."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a publisher decides with.

    `batch_wait_s` is T of the publisher paper: how long messages may wait for a batch to fill. After
    `stall_timeout_s` without any confirm for what is in flight, the controller learns that the broker has
    stalled. `ordered`: one batch is in flight at a time, as large as the window, so that what has to be sent again
    is never behind what came later.
    """

    controller: Controller[Any]
    batch_wait_s: float = 0.2
    stall_timeout_s: float = 1.0
    ordered: bool = False
    name: str = "publisher"
    """The loop's name in its records."""

    def __post_init__(self) -> None:
        for name in ("batch_wait_s", "stall_timeout_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise InvalidValue(f"{name} must be a number of seconds > 0, got {value!r}")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that left together; goes out with `Send` and comes back with `Confirmed` or `Failed`."""

    count: int
    sent_s: float


@dataclass(frozen=True, slots=True)
class Accepted:
    """So many more messages wait in the store."""

    now_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """So many of the waiting messages need not be sent any more."""

    now_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Urgent:
    """So many of the waiting messages are of the most urgent class now."""

    now_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has the batch."""

    now_s: float
    batch: Batch


@dataclass(frozen=True, slots=True)
class Failed:
    """Of the batch, `back` messages were not stored and wait again; the next try is not before `retry_s`."""

    now_s: float
    batch: Batch
    back: int
    retry_s: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """The broker blocks senders: nothing is sent until `Unblocked`, which comes without a message being sent.

    A broker that does not answer shows by `Failed` only: it is tried again after each back-off.
    """

    now_s: float


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The broker accepts messages again."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Timer:
    """The time asked for has come."""

    now_s: float


Event: TypeAlias = Accepted | Withdrawn | Urgent | Confirmed | Failed | Blocked | Unblocked | Timer


@dataclass(frozen=True, slots=True)
class Decisions:
    """Batches to send now, when to come back at the latest (None: an event will come), the controller's steps."""

    send: tuple[Batch, ...] = ()
    wake_s: float | None = None
    records: tuple[LoopRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """All that a publisher's decisions depend on. Counts are in messages, times in seconds on any one clock."""

    controller_state: Any
    command: Batching
    pending: int = 0
    urgent: int = 0
    """How many of them are of the most urgent class."""
    in_flight: int = 0
    handing: int = 0
    """Messages of the present batch that are not handed over yet."""
    begun_s: float = 0.0
    """When the present batch began to be handed over."""
    next_poll_s: float = 0.0
    polling: bool = True
    """False: the store is empty and polling it changes nothing, until something is accepted."""
    waiting_since_s: float = 0.0
    """Since when the first waiting message waits for a batch."""
    window_full_s: float = -math.inf
    """When messages last waited because the window was full."""
    progress_s: float = 0.0
    """Last confirm, or when something went on its way with nothing before it."""
    retry_s: float = -math.inf
    blocked: bool = False
    stepped_s: float = 0.0
    arrivals: int = 0
    """Accepted since the controller's last step."""


def start(policy: Policy, now_s: float, *, batch: int = 1, pending: int = 0) -> State:
    """The state of a publisher with `pending` messages in its store and an initial N of `batch`."""
    if batch < 1:
        raise InvalidValue(f"batch must be an integer >= 1, got {batch!r}")
    command = Batching(float(batch), float(batch), 0.0, float(batch))
    memory = policy.controller.initial(tuple(command))
    # The first step shows the controller's own opening command: nothing has happened yet.
    memory, action = policy.controller.step(
        memory, Sample(now_s, 0.0, 0.0, tuple(PublisherMeasurement(pending=float(pending))))
    )
    return State(
        controller_state=memory,
        command=_command(action, command),
        pending=pending,
        next_poll_s=now_s,
        waiting_since_s=now_s,
        progress_s=now_s,
        stepped_s=now_s,
    )


def decide(policy: Policy, state: State, *events: Event) -> tuple[State, Decisions]:
    """Take in what happened, oldest first, and say what to do.

    Pass events that came together in one call: what several confirms make room for leaves as one batch.
    """
    records: list[LoopRecord] = []
    now_s = events[-1].now_s
    for event in events:
        state = _apply(policy, state, event, records)
    if _is_stalled(policy, state, now_s):
        state = _step(policy, replace(state, progress_s=now_s), now_s, records, unavailable=1.0)
    state, sends = _send(policy, state, now_s, records)
    return state, Decisions(sends, _wake_s(policy, state, now_s), tuple(records))


def largest_body(limits: Sequence[int | None], required: int) -> int | None:
    """The largest body that `required` of the targets with these limits can take; None: none is known.

    >>> largest_body([10, 1000, None], 1), largest_body([10, 1000, None], 2), largest_body([10, 1000, None], 3)
    (None, 1000, 10)
    """
    limit = sorted(math.inf if each is None else each for each in limits)[-required]
    return None if limit == math.inf else int(limit)


def _apply(policy: Policy, state: State, event: Event, records: list[LoopRecord]) -> State:
    now_s = event.now_s
    match event:
        case Accepted(count=count):
            if state.pending == 0:
                state = replace(state, waiting_since_s=now_s)
            state = _poll_again(state, now_s)
            state = replace(state, pending=state.pending + count, arrivals=state.arrivals + count)
        case Withdrawn(count=count):
            pending = state.pending - count
            state = replace(state, pending=pending, handing=min(state.handing, pending))
        case Urgent(count=count):
            state = replace(state, urgent=count)
        case Confirmed(batch=batch):
            state = _confirm(policy, state, batch, now_s, records)
        case Failed(batch=batch, back=back, retry_s=retry_s):
            state = replace(
                state,
                in_flight=state.in_flight - batch.count,
                pending=state.pending + back,
                waiting_since_s=now_s if state.pending == 0 else state.waiting_since_s,
                progress_s=now_s,
                retry_s=max(state.retry_s, retry_s),
            )
            state = _step(policy, state, now_s, records, unavailable=1.0)
        case Blocked():
            state = _step(policy, replace(state, blocked=True), now_s, records, unavailable=1.0)
        case Unblocked():
            state = replace(state, blocked=False, progress_s=now_s)
        case Timer():
            pass
    return state


def _confirm(policy: Policy, state: State, batch: Batch, now_s: float, records: list[LoopRecord]) -> State:
    measurement = PublisherMeasurement(
        transfer_s=max(0.0, now_s - batch.sent_s),
        confirmed=float(batch.count),
        in_flight=float(state.in_flight),
        limited=float(state.window_full_s >= batch.sent_s),
    )
    state = replace(state, in_flight=state.in_flight - batch.count, progress_s=now_s)
    return _step(policy, state, now_s, records, measurement)


def _poll_again(state: State, now_s: float) -> State:
    """Polls go on ticking while nobody looks: the next one is at the next tick, not at the arrival."""
    if state.polling:
        return state
    poll_s, next_poll_s = state.command.poll_s, state.next_poll_s
    if poll_s > 0.0 and now_s > next_poll_s:
        next_poll_s += math.ceil((now_s - next_poll_s) / poll_s) * poll_s
    return replace(state, polling=True, next_poll_s=next_poll_s)


def _is_stalled(policy: Policy, state: State, now_s: float) -> bool:
    return state.in_flight > 0 and not state.blocked and now_s >= state.progress_s + policy.stall_timeout_s


def _step(
    policy: Policy,
    state: State,
    now_s: float,
    records: list[LoopRecord],
    measurement: PublisherMeasurement | None = None,
    *,
    unavailable: float = 0.0,
) -> State:
    """Step the controller with what happened."""
    measurement = (measurement or PublisherMeasurement(in_flight=float(state.in_flight)))._replace(
        pending=float(state.pending), arrivals=float(state.arrivals), unavailable=unavailable
    )
    sample = Sample(now_s, now_s - state.stepped_s, 0.0, tuple(measurement), tuple(state.command))
    memory, action = policy.controller.step(state.controller_state, sample)
    records.append(
        LoopRecord(
            loop=policy.name,
            time=now_s,
            setpoint=None,
            measurement=measurement,
            applied=state.command,
            proposed=action.command,
            command=action.command,
            mode="on",
            saturated=action.saturated,
            parts=action.parts,
            reason=action.reason,
            code=action.code,
        )
    )
    return replace(
        state, controller_state=memory, command=_command(action, state.command), stepped_s=now_s, arrivals=0
    )


def _command(action: Action, before: Batching) -> Batching:
    return Batching(*action.command) if isinstance(action.command, tuple) else before


def _send(
    policy: Policy, state: State, now_s: float, records: list[LoopRecord]
) -> tuple[State, tuple[Batch, ...]]:
    """Hand over what is due, as far as there is room. Bounded: each turn sends something or ends."""
    sends: list[Batch] = []
    while not state.blocked and now_s >= state.retry_s:
        if state.handing == 0:
            state = _begin(policy, state, now_s, records)
            if state.handing == 0:
                break
        if policy.ordered and state.in_flight > 0:
            state = replace(state, window_full_s=now_s)
            break
        room = int(state.command.window) - state.in_flight
        wanted = min(state.handing, state.pending)
        piece = min(wanted, max(1, int(state.command.window) // _PIECES_OF_WINDOW))
        count = min(wanted, max(room, 1))
        if room < piece and state.in_flight > 0:
            # A part beyond the window is reserved for urgent messages: they do not wait behind others.
            count = min(wanted, state.urgent, room + max(1, int(state.command.window) // _URGENT_PART))
        if count < wanted:
            state = replace(state, window_full_s=now_s)
        if count < 1:
            break
        sends.append(Batch(count, now_s))
        state = replace(
            state,
            pending=state.pending - count,
            urgent=max(0, state.urgent - count),
            handing=state.handing - count,
            in_flight=state.in_flight + count,
            progress_s=now_s if state.in_flight == 0 else state.progress_s,
            waiting_since_s=now_s,
        )
        if state.handing == 0:
            measurement = PublisherMeasurement(
                handed_s=max(0.0, now_s - state.begun_s), in_flight=float(state.in_flight)
            )
            if state.command.poll_s > 0.0:
                state = _step(policy, state, now_s, records, measurement)
    return state, tuple(sends)


def _begin(policy: Policy, state: State, now_s: float, records: list[LoopRecord]) -> State:
    """Look at the store: is a batch due? Then `handing` says how large it is."""
    command = state.command
    polled = command.poll_s > 0.0
    if polled and now_s < state.next_poll_s:
        return state
    waited = now_s >= state.waiting_since_s + policy.batch_wait_s
    if state.pending > 0 and (state.pending >= command.least or waited):
        most = max(command.most, command.window) if policy.ordered else command.most
        count = max(1, min(state.pending, int(most)))
        return replace(state, handing=count, begun_s=now_s, next_poll_s=now_s + command.poll_s)
    if polled and state.polling:
        state = _step(policy, state, now_s, records, PublisherMeasurement(short_poll=1.0))
        more = state.pending > 0 or state.command != command
        state = replace(state, next_poll_s=now_s + state.command.poll_s, polling=more)
    return state


def _wake_s(policy: Policy, state: State, now_s: float) -> float | None:
    """The next moment at which something may be due without any event."""
    if state.blocked:
        return None
    times: list[float] = []
    if state.in_flight:
        times.append(state.progress_s + policy.stall_timeout_s)
    if state.pending and now_s < state.retry_s:
        times.append(state.retry_s)
    elif state.handing == 0:
        if state.command.poll_s > 0.0:
            times += [state.next_poll_s] if state.polling else []
        elif state.pending:
            times.append(state.waiting_since_s + policy.batch_wait_s)
    return min(times) if times else None
