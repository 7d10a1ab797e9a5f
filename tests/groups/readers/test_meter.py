"""What a member reports of its queues: the work of a message does not include what it waited for others."""

from __future__ import annotations

import random

import pytest

from flyball.groups.readers.meter import QueueMeter, SharedTime


def run(in_flight: int, work_s: dict[str, float], seconds: float, seed: int) -> dict[str, QueueMeter]:
    """A member that handles one message after the other, with up to `in_flight` messages waiting for it."""
    chance = random.Random(seed)
    shared, meters = SharedTime(0.0), {name: QueueMeter(0.0) for name in work_s}
    waiting: list[tuple[str, float, float]] = []
    now_s = 0.0
    while now_s < seconds:
        while len(waiting) < in_flight:
            name = chance.choice(sorted(work_s))
            meters[name].begin(1, now_s)
            waiting.append((name, now_s, shared.add(1, now_s)))
        name, since_s, share_s = waiting.pop(0)
        now_s += work_s[name]
        meters[name].end(since_s, shared.add(-1, now_s) - share_s, now_s)
    return meters


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_flight", [1, 5, 50])
def test_the_work_of_a_busy_member_does_not_depend_on_how_many_wait(in_flight: int, seed: int) -> None:
    """However many wait, the work that queues report adds up to the time for which the member was busy."""
    work_s = {"one": 0.010, "other": 0.010}
    for meter in run(in_flight, work_s, 200.0, seed).values():
        assert meter.load(200.0).service_s == pytest.approx(0.010, rel=0.1)


def test_the_shares_of_all_messages_add_up_to_the_busy_time() -> None:
    chance, shared, now_s, busy_s, total_s = random.Random(1), SharedTime(0.0), 0.0, 0.0, 0.0
    flights: list[float] = []
    for _ in range(2000):
        step_s = chance.expovariate(100.0)
        busy_s += step_s if flights else 0.0
        now_s += step_s
        if flights and chance.random() < 0.5:
            share_s = flights.pop(chance.randrange(len(flights)))
            total_s += shared.add(-1, now_s) - share_s
        else:
            flights.append(shared.add(1, now_s))
    total_s += sum(shared.share_s(now_s) - share_s for share_s in flights)
    assert total_s == pytest.approx(busy_s)
