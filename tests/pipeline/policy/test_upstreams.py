"""What several pipelines promise together: the least of all, complete ticks only, the silent given up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from flyball.pipeline.policy import ended_at, settled_time_s, upstreams_of, with_marks

NAMES = ("lyon", "nice", "paris")
TICKS = st.lists(st.dictionaries(st.sampled_from([*NAMES, "stranger"]), st.floats(0, 100)), max_size=20)


@given(TICKS, st.integers(-1, 19))
def test_settled_is_the_least_promise_of_complete_ticks(ticks: list[dict[str, float]], settled: int) -> None:
    feeds = upstreams_of(NAMES)
    for number, marks in enumerate(ticks):
        feeds = with_marks(feeds, number, marks)
    complete = ticks[: settled + 1]
    wanted = min(max((marks.get(name, -math.inf) for marks in complete), default=-math.inf) for name in NAMES)
    feeds, until_s = settled_time_s(feeds, settled, now_s=0.0, timeout_s=1.0)
    assert until_s == wanted
    # Whatever was not complete then counts later.
    last = min(max((marks.get(name, -math.inf) for marks in ticks), default=-math.inf) for name in NAMES)
    assert settled_time_s(feeds, len(ticks), now_s=0.5, timeout_s=1.0)[1] == last


@given(TICKS, st.lists(st.floats(0, 30), min_size=20, max_size=20))
def test_settled_never_goes_back(ticks: list[dict[str, float]], pauses: list[float]) -> None:
    feeds, now_s, before_s = upstreams_of(NAMES), 0.0, -math.inf
    for number, (marks, pause_s) in enumerate(zip(ticks, pauses, strict=False)):
        now_s += pause_s
        feeds, until_s = settled_time_s(with_marks(feeds, number, marks), number, now_s, timeout_s=20.0)
        assert until_s >= before_s
        before_s = until_s


def test_one_that_is_silent_is_given_up_and_counts_again_when_it_has_caught_up() -> None:
    feeds = with_marks(upstreams_of(["lyon", "paris"]), 0, {"lyon": 10.0, "paris": 5.0})
    feeds, until_s = settled_time_s(feeds, 0, now_s=0.0, timeout_s=60.0)
    assert until_s == 5.0
    feeds, until_s = settled_time_s(with_marks(feeds, 1, {"lyon": 90.0}), 1, now_s=59.0, timeout_s=60.0)
    assert until_s == 5.0
    feeds, until_s = settled_time_s(feeds, 1, now_s=60.0, timeout_s=60.0)
    assert until_s == 90.0
    feeds, until_s = settled_time_s(with_marks(feeds, 2, {"paris": 50.0}), 2, now_s=61.0, timeout_s=60.0)
    assert until_s == 90.0  # still behind: nobody waits
    feeds, until_s = settled_time_s(
        with_marks(feeds, 3, {"paris": 95.0, "lyon": 200.0}), 3, now_s=62.0, timeout_s=60.0
    )
    assert until_s == 95.0


def test_all_have_to_end_before_the_input_has() -> None:
    feeds, until_s = settled_time_s(
        with_marks(upstreams_of(["lyon", "paris"]), 0, {"lyon": math.inf}), 0, 0.0, 60.0
    )
    assert until_s == -math.inf
    feeds, until_s = settled_time_s(with_marks(feeds, 1, {"paris": math.inf}), 1, 0.0, 60.0)
    assert until_s == math.inf
    assert settled_time_s(ended_at(feeds, 70.0), 1, 0.0, 60.0)[1] == 70.0
