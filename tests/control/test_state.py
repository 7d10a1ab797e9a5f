from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.control.controllers.fixed import FixedState
from flyball.control.controllers.pi import Pi, PiState
from flyball.control.controllers.state_feedback import StateFeedbackState
from flyball.control.state import from_plain, to_plain
from flyball.control.step import Sample
from flyball.control.wrappers import Ewma, Saturation
from flyball.errors import InvalidValue


@dataclass(frozen=True)
class Nested:
    number: float
    inner: PiState | StateFeedbackState | None
    many: tuple[PiState, ...]
    pair: tuple[int, str]
    word: str
    flag: bool


numbers = st.floats(allow_nan=False)
pi_states = st.builds(PiState, numbers, st.none() | numbers)
others = st.builds(
    StateFeedbackState, numbers, st.tuples(numbers), st.tuples(numbers, numbers), st.none() | numbers
)


@given(
    st.builds(
        Nested,
        numbers,
        st.none() | pi_states | others,
        st.lists(pi_states, max_size=3).map(tuple),
        st.tuples(st.integers(), st.text()),
        st.sampled_from(["inf", "nan", "x"]),
        st.booleans(),
    )
)
def test_any_state_survives_json_exactly(state: Nested) -> None:
    text = json.dumps(to_plain(state), allow_nan=False)
    restored = from_plain(Nested, json.loads(text))
    assert restored == state
    assert type(restored.inner) is type(state.inner)
    assert math.copysign(1.0, restored.number) == math.copysign(1.0, state.number)


def test_nan_survives() -> None:
    assert math.isnan(from_plain(PiState, json.loads(json.dumps(to_plain(PiState(math.nan))))).command)


def test_wrapped_states_are_restored_like_an_initial_one() -> None:
    controller = Saturation(Ewma(Pi(0.1, 0.2), keep=0.5), low=0.0, high=9.0)
    state = controller.initial(3.0)
    for y in (1.0, 2.0, 4.0):
        state, _ = controller.step(state, Sample(0.0, 1.0, 5.0, y))
    assert from_plain(controller.initial(0.0), json.loads(json.dumps(to_plain(state)))) == state


def test_vector_in_a_value_comes_back_as_a_tuple() -> None:
    assert from_plain(FixedState, {"command": [1.0, 2.0]}) == FixedState((1.0, 2.0))


def test_refuses_a_state_of_another_controller() -> None:
    with pytest.raises(InvalidValue, match="does not fit PiState"):
        from_plain(PiState, {"bias": 1.0})


def test_refuses_what_cannot_be_stored() -> None:
    with pytest.raises(InvalidValue, match="got dict"):
        to_plain(({},))


def test_wrapper_state_needs_an_example() -> None:
    controller = Ewma(Pi(0.1, 0.2), keep=0.5)
    state = controller.initial(3.0)
    with pytest.raises(InvalidValue, match="cannot tell"):
        from_plain(type(state), to_plain(state))


@dataclass(frozen=True)
class Renamed:
    samples: int
    held_window: float | None = field(default=None, metadata={"stored_as": "held"})


def test_a_renamed_field_reads_what_was_stored_under_its_old_name() -> None:
    stored = {"samples": 3, "held": 6.5}
    assert to_plain(Renamed(3, 6.5)) == stored
    assert from_plain(Renamed, stored) == Renamed(3, 6.5)
    with pytest.raises(InvalidValue, match="it has samples, held_window, expected samples, held"):
        from_plain(Renamed, {"samples": 3, "held_window": 6.5})
