"""Every controller of the catalogue keeps the contract, bare and wrapped; broken ones are found out."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.control.controllers import catalogue
from flyball.control.controllers.gain_scheduled import Region
from flyball.control.controllers.pi import Pi, PiState
from flyball.control.controllers.publishing.signals import PublisherMeasurement
from flyball.control.step import Action, Controller, Sample, Value
from flyball.control.wrappers import Bumpless, DeadBand, Dither, Ewma, Median, Saturation, Slew
from flyball.testing.controllers import check_controller

EYE, ZERO = ((1.0, 0.0), (0.0, 1.0)), ((0.0, 0.0), (0.0, 0.0))

# A batch of 5 confirmed after 20 ms; these controllers choose their own initial command.
PUBLISHING: dict[str, Any] = {
    "command": (1.0, 4.0, 0.05, 16.0),
    "setpoint": tuple(PublisherMeasurement(30.0, 5.0, 0.0, 0.01, 0.02, 5.0, 12.0, 1.0, 0.0)),
    "first_move": math.inf,
}

# A working configuration of each, and the arguments of `check_controller` for it.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fixed": ({}, {}),
    "p": ({"kp": 0.02}, {}),
    "pi": ({"kp": -0.0016, "ki": 0.006}, {}),
    "pid": ({"kp": 0.0018, "ki": 0.0058, "kd": 0.0018, "derivative_filter": 0.3}, {}),
    "pi_ff": (
        {"kp": 0.0, "ki": 0.006, "setpoint_gain": 0.01, "disturbance_gains": (1.0, -0.5)},
        {"disturbances": (3.0, 8.0)},
    ),
    "state_feedback": ({"ki": -0.0023, "ky": (-0.008, 0.001), "ku": (1.087, 0.1)}, {}),
    "gain_scheduled": (
        {"regions": (Region(0.0, 0.0, 0.01), Region(300.0, 0.001, 0.006, 0.001)), "hysteresis": 5.0},
        {},
    ),
    "self_tuning": ({"kp": 0.0, "ki": 0.001, "probe": 0.25, "every": 10}, {"first_move": 0.25}),
    "lqr": (
        {"ki": EYE, "ky": ((0.2, 0.1), (0.0, 0.3)), "ku": ((0.1, 0.0, 0.05, 0.0), (0.0, 0.1, 0.0, 0.05))},
        {"command": (10.0, 20.0), "setpoint": (400.0, 100.0)},
    ),
    "aimd": ({"increase": 1.0}, {"first_move": 1.0}),
    "proportional_rule": ({}, {}),
    **{name: ({}, PUBLISHING) for name in ("static", "batch-aimd", "auto")},
}

WRAPPINGS: dict[str, Any] = {
    "saturation": lambda inner: Saturation(inner, 0.0, 50.0),
    "slew": lambda inner: Saturation(Slew(inner, rise=3.0, fall=2.0), 0.0, 50.0),
    "dead band": lambda inner: Saturation(DeadBand(inner, width=1.0), 0.0, 50.0),
    "ewma": lambda inner: Saturation(Ewma(inner, keep=0.5), 0.0, 50.0),
    "median": lambda inner: Saturation(Median(inner, size=3), 0.0, 50.0),
    "dither": lambda inner: Dither(Saturation(inner, 0.0, 50.0)),
    "bumpless": lambda inner: Saturation(Bumpless(inner, fade=0.5), 0.0, 50.0),
    "all": lambda inner: Dither(
        Saturation(Slew(Bumpless(DeadBand(Median(Ewma(inner, 0.5)), 1.0)), 5.0, 5.0), 0.0, 50.0)
    ),
}


def test_every_controller_of_the_catalogue_has_a_case() -> None:
    assert set(CASES) == set(catalogue.NAMES)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", list(CASES))
def test_controller_keeps_the_contract(name: str, seed: int) -> None:
    config, options = CASES[name]
    check_controller(catalogue.make(name, **config), **options, seed=seed)


@pytest.mark.parametrize("wrapping", list(WRAPPINGS))
@pytest.mark.parametrize("name", list(CASES))
def test_wrapped_controller_keeps_the_contract_and_its_limits(name: str, wrapping: str) -> None:
    config, options = CASES[name]
    # a dithered start is a whole number near the command
    options = {
        **options,
        "first_move": options.get("first_move", 0.0) + (1.0 if wrapping in ("dither", "all") else 0.0),
    }
    check_controller(
        WRAPPINGS[wrapping](catalogue.make(name, **config)), **options, limits=(0.0, 50.0), samples=80
    )


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 400.0, 1e308, -1e308, 5e-324])
samples = st.builds(
    Sample,
    time=st.floats(-1e9, 1e9),
    dt=st.sampled_from([0.0, 1.0, 3600.0, -5.0, math.nan, math.inf]),
    setpoint=numbers,
    measurement=st.none() | numbers,
    applied=st.none() | numbers,
    disturbances=st.lists(numbers, max_size=3).map(tuple),
)


@pytest.mark.parametrize("name", [name for name in CASES if "command" not in CASES[name][1]])
@settings(max_examples=50)
@given(seen=st.lists(samples, min_size=1, max_size=25))
def test_no_sample_whatsoever_crashes_a_loop_or_leaves_the_limits(name: str, seen: list[Sample]) -> None:
    controller = Dither(Saturation(Slew(catalogue.make(name, **CASES[name][0]), 9.0, 9.0), 1.0, 360.0))
    state: Any = controller.initial(10.0)
    for sample in seen:
        state, action = controller.step(state, sample)
        if action.command is not None:
            assert isinstance(action.command, float)
            assert 1.0 <= action.command <= 360.0


@given(
    seen=st.lists(
        st.builds(
            Sample,
            time=st.just(0.0),
            dt=st.just(1.0),
            setpoint=numbers | st.tuples(numbers, numbers),
            measurement=st.none() | numbers | st.lists(numbers, max_size=3).map(tuple),
            applied=st.none() | numbers | st.lists(numbers, max_size=3).map(tuple),
        ),
        max_size=15,
    )
)
def test_no_vector_whatsoever_crashes_lqr_or_leaves_the_limits(seen: list[Sample]) -> None:
    controller = Dither(
        Saturation(Slew(Ewma(catalogue.make("lqr", **CASES["lqr"][0]), 0.5), 9.0), (1.0, 2.0), 360.0)
    )
    state: Any = controller.initial((10.0, 20.0))
    for sample in seen:
        state, action = controller.step(state, sample)
        if action.command is not None:
            assert isinstance(action.command, tuple)
            assert all(low <= u <= 360.0 for u, low in zip(action.command, (1.0, 2.0), strict=True))


@dataclass(frozen=True)
class Base:
    """A controller of a user: correct, to be broken one promise at a time."""

    gain: float = 0.5

    def initial(self, command: Value) -> PiState:
        assert isinstance(command, float)
        return PiState(command)

    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        return Pi(0.0, self.gain).step(state, sample)


def test_a_controller_of_a_user_passes() -> None:
    check_controller(Base())


class NotADataclass:
    def initial(self, command: Value) -> PiState:
        return Base().initial(command)

    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        return Base().step(state, sample)


@dataclass(frozen=True)
class Unhashable(Base):
    table: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Raises(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        if sample.measurement is None:
            raise ValueError("no measurement")
        return Base.step(self, state, sample)


@dataclass(frozen=True)
class PassesNan(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        if sample.measurement is None or isinstance(sample.measurement, tuple):
            return state, Action(None, reason="missing")
        return state, Action(state.command + 0.0 * sample.measurement)


@dataclass(frozen=True)
class ActsOnNothing(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        state, action = Base.step(self, state, sample)
        return state, Action(state.command) if action.command is None else action


@dataclass(frozen=True)
class SilentHold(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        state, action = Base.step(self, state, sample)
        return state, dataclasses.replace(action, reason="")


@dataclass(frozen=True)
class Bumps(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        state, action = Base.step(self, state, sample)
        assert not isinstance(action.command, tuple)
        return state, action if action.command is None else Action(action.command + 1.0)


_calls = iter(range(10**9))


@dataclass(frozen=True)
class Impure(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        state, action = Base.step(self, state, sample)
        return state, dataclasses.replace(action, reason=f"call {next(_calls)}")


@dataclass
class Notebook:
    """A state that can be written to."""

    command: float
    steps: int = 0


@dataclass(frozen=True)
class Mutates:
    gain: float = 0.5

    def initial(self, command: Value) -> Notebook:
        assert isinstance(command, float)
        return Notebook(command)

    def step(self, state: Notebook, sample: Sample) -> tuple[Notebook, Action]:
        state.steps += 1
        _, action = Pi(0.0, self.gain).step(PiState(state.command), sample)
        return state, action


@dataclass(frozen=True)
class KeepsAList(Base):
    def initial(self, command: Value) -> Any:
        return [command]

    def step(self, state: Any, sample: Sample) -> tuple[Any, Action]:
        return state, Base.step(self, PiState(state[0]), sample)[1]


_memory: dict[int, float] = {}


@dataclass(frozen=True)
class RemembersElsewhere:
    """Keeps its integral in a module, under the identity of the state: lost when the state is restored."""

    gain: float = 0.5

    def initial(self, command: Value) -> PiState:
        assert isinstance(command, float)
        return PiState(command)

    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        after, action = Pi(_memory.get(id(state), 0.0), self.gain).step(state, sample)
        _memory[id(after)] = 1.0
        _keep.append(after)  # or its identity would be used again
        return after, action


_keep: list[PiState] = []


@dataclass(frozen=True)
class NeverRecovers(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        if state.integral == -math.inf:
            return state, Action(None, reason="gone")
        after, action = Base.step(self, state, sample)
        return (PiState(0.0, -math.inf) if sample.measurement is None else after), action


@dataclass(frozen=True)
class Runaway(Base):
    gain: float = 1e3


@dataclass(frozen=True)
class Reshapes(Base):
    def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
        state, action = Base.step(self, state, sample)
        return state, Action(action.command if action.command is None else (state.command,) * 2, reason="x")


@dataclass(frozen=True)
class Unpicklable(Base):
    law: Any = field(default_factory=lambda: _local())


def _local() -> Any:
    return lambda error: error


@pytest.mark.parametrize(
    ("broken", "words", "options"),
    [
        (NotADataclass(), "is not a dataclass", {}),
        (Unhashable(), "cannot be hashed", {}),
        (Unpicklable(), "pickle", {}),
        (Raises(), "step raised ValueError: no measurement", {}),
        (PassesNan(), "a bad sample must hold|is not finite", {}),
        (ActsOnNothing(), "a bad sample must hold", {}),
        (SilentHold(), "must give its reason", {}),
        (Bumps(), "the start bumps: from 10.0 without any error to 11.0", {}),
        (Impure(), "two equal steps gave other actions", {}),
        (Mutates(), "step changed the state", {}),
        (KeepsAList(), "the state cannot be stored", {}),
        (RemembersElsewhere(), "after saving and restoring|goes on differently", {}),
        (NeverRecovers(), "never acts again", {}),
        (Runaway(), "is outside 0 … 50", {"limits": (0.0, 50.0)}),
        (Reshapes(), "another shape", {}),
    ],
)
def test_finds_the_violation(broken: Controller[Any], words: str, options: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=words):
        check_controller(broken, **options)


def test_finds_a_configuration_that_can_be_changed() -> None:
    @dataclass
    class Loose:
        gain: float = 0.5

        def initial(self, command: Value) -> PiState:
            return Base().initial(command)

        def step(self, state: PiState, sample: Sample) -> tuple[PiState, Action]:
            return Base().step(state, sample)

    with pytest.raises(AssertionError, match="is not frozen: gain can be set"):
        check_controller(Loose())
