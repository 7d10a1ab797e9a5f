"""The filter of finished ids is exact inside its horizon and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.brokers.core.dedup import FinishedIds
from flyball.errors import InvalidValue


@given(
    st.lists(st.tuples(st.integers(0, 30), st.floats(0, 5)), max_size=200),
    st.integers(0, 20),
    st.floats(0.5, 50),
)
def test_agrees_with_looking_back_through_everything(
    steps: list[tuple[int, float]], max_ids: int, max_age_s: float
) -> None:
    finished = FinishedIds(max_ids, max_age_s)
    history: list[tuple[str, float]] = []
    now_s = 0.0
    for number, wait_s in steps:
        now_s += wait_s
        id = str(number)
        latest = dict(history)  # the last time each id was finished
        order = list(dict.fromkeys(known for known, _ in reversed(history)))
        fresh = id in latest and now_s - latest[id] <= max_age_s
        if id in order[:max_ids] or id not in order[: max_ids + max_ids // 4]:
            assert finished.contains(id, now_s) == (fresh and id in order[:max_ids])
        else:  # in the slack: remembered or not, but never longer than its age allows
            assert fresh or not finished.contains(id, now_s)
        assert len(finished) <= max_ids + max_ids // 4
        finished.add([id], now_s)
        history.append((id, now_s))


def test_an_id_never_finished_is_not_seen() -> None:
    finished = FinishedIds()
    assert not finished.contains("a", 0.0)
    assert not finished.contains("a", 0.0)


@pytest.mark.parametrize(("max_ids", "max_age_s"), [(-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_an_impossible_horizon_is_refused(max_ids: int, max_age_s: float) -> None:
    with pytest.raises(InvalidValue, match="ids to remember must be"):
        FinishedIds(max_ids, max_age_s)
