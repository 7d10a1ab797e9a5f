"""The guard: detects when a loop no longer behaves as its design assumed, and reports the reason.

It runs beside a controller, sees what the controller sees and asks for, and answers with a verdict: nothing,
an alert, a freeze of the actuator, or a retreat to the last command under which the loop was well. It is pure
like a controller; the loop carries out the verdict. What it notices:

missing      no usable measurement for several samples
stale        the very same measurement again and again, off the goal, while the command moves
unreachable  the command is at its limit and the goal still is not reached
saturated    the command has been at its limit for long
lost         the measurement does not answer to the command (`gain_watch`)
inverted     it answers with the wrong sign
oscillation  the error swings regularly and does not die down (`oscillation`)

When it has stopped a controller for one of the last three, it watches what follows and says when the controller
may act again (`hold`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from flyball.control.controllers.common import as_tuple, check_between, check_choice, check_whole
from flyball.control.filters import ewma
from flyball.control.guard import gain_watch, oscillation
from flyball.control.guard import hold as holding
from flyball.control.guard.gain_watch import Spell
from flyball.control.guard.hold import Cause, Hold, Release
from flyball.control.guard.oscillation import Swing
from flyball.control.step import Action, Sample, Value, is_usable

Kind: TypeAlias = Literal["missing", "stale", "unreachable", "saturated", "lost", "inverted", "oscillation"]
Response: TypeAlias = Literal["ignore", "alert", "freeze", "retreat"]
_SEVERITY: tuple[Response, ...] = ("ignore", "alert", "freeze", "retreat")
_CAUSES: tuple[Cause, ...] = ("oscillation", "inverted", "lost")
_MEAN = 0.9  # weight of the old running mean that becomes the safe command


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that is wrong. `fresh`: it was not so at the sample before."""

    kind: Kind
    reason: str
    response: Response
    fresh: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the loop should do now: the severest response of all notices, and where to retreat to."""

    response: Response = "ignore"
    command: Value | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def reason(self) -> str:
        return "; ".join(notice.reason for notice in self.notices)


@dataclass(frozen=True, slots=True)
class Channel:
    """What is remembered of one measurement and, where there are as many commands, of the command beside it."""

    measurement: float | None = None
    repeated: int = 0
    repeated_since: float | None = None
    spell: Spell | None = None
    swing: Swing = field(default_factory=Swing)


@dataclass(frozen=True, slots=True)
class GuardState:
    """Counters of samples in a row, the mean command while the loop is well, and the command to retreat to.

    `trials` in vain since the loop was well; `load_period`, `load_range`: how the load alone moves a measurement.
    """

    samples: int = 0
    channels: tuple[Channel, ...] = ()
    missing: int = 0
    saturated: int = 0
    unreached: int = 0
    well: int = 0
    mean: tuple[float, ...] | None = None
    safe: tuple[float, ...] | None = None
    active: tuple[str, ...] = ()
    trials: int = 0
    load_period: float | None = None
    load_range: float = 0.0


_OK = Verdict()


@dataclass(frozen=True, slots=True)
class Guard:
    """When to react, and how to respond to each finding.

    `patience` should be at least twice the settling time that the certificate of the loop predicts: within
    it, a working loop has moved a persistent error.

    >>> guard = Guard(patience=5, measurement_name="the rate", command_name="the window")
    >>> state = guard.initial()
    >>> for k in range(7):
    ...     seen = Sample(k, 1.0, setpoint=400.0, measurement=100.0 + k % 2, applied=10.0 + 5.0 * k)
    ...     state, verdict = guard.check(state, seen, Action(15.0 + 5.0 * k))
    >>> print(verdict.response, "because", verdict.reason)
    freeze because the rate did not answer while the window went from 10 to 40: it is at 100, the goal is 400

    (It would retreat to the last command under which the loop was well, if there were one.)
    """

    tolerance: float = field(
        default=0.1, metadata={"help": "error that is left alone, as a fraction of the set point"}
    )
    tolerance_absolute: float = field(
        default=0.0,
        metadata={"help": "error that is left alone, in units of the measurement; the larger one counts"},
    )
    patience: int = field(
        default=20, metadata={"help": "samples of a persistent error before the gain or the goal is doubted"}
    )
    least_move: float = field(
        default=0.2, metadata={"help": "move of the command, as a fraction of itself, that should have an effect"}
    )
    missing_after: int = field(default=3, metadata={"help": "samples without a measurement before it is missing"})
    stale_after: int = field(default=20, metadata={"help": "equal measurements in a row before they are stale"})
    saturated_after: int = field(default=300, metadata={"help": "samples at a limit before that is reported"})
    swings: int = field(
        default=16, metadata={"help": "regular half waves of the error before it is an oscillation"}
    )
    on_missing: Response = field(default="freeze", metadata={"help": "ignore, alert, freeze or retreat"})
    on_stale: Response = field(default="freeze", metadata={"help": "ignore, alert, freeze or retreat"})
    on_unreachable: Response = field(default="alert", metadata={"help": "ignore, alert, freeze or retreat"})
    on_saturated: Response = field(default="alert", metadata={"help": "ignore, alert, freeze or retreat"})
    on_lost: Response = field(default="retreat", metadata={"help": "ignore, alert, freeze or retreat"})
    on_inverted: Response = field(default="retreat", metadata={"help": "ignore, alert, freeze or retreat"})
    on_oscillation: Response = field(default="retreat", metadata={"help": "ignore, alert, freeze or retreat"})
    measurement_name: str = field(
        default="the measurement", metadata={"help": "what reasons call the measurement"}
    )
    command_name: str = field(default="the command", metadata={"help": "what reasons call the command"})

    def __post_init__(self) -> None:
        for name in ("tolerance", "tolerance_absolute", "least_move"):
            check_between(self, name, 0.0, math.inf, high_open=True)
        for name in ("patience", "missing_after", "stale_after", "saturated_after", "swings"):
            check_whole(self, name, 1)
        for kind in ("missing", "stale", "unreachable", "saturated", "lost", "inverted", "oscillation"):
            check_choice(self, f"on_{kind}", _SEVERITY)

    def initial(self) -> GuardState:
        return GuardState()

    def check(self, state: GuardState, sample: Sample, action: Action) -> tuple[GuardState, Verdict]:
        """Look at one step of the loop: the sample, and what the controller answered."""
        measured = sample.measurement
        if measured is None or not is_usable(measured) or not is_usable(sample.setpoint):
            return self._missing(state, sample)
        values, goals = as_tuple(measured), as_tuple(sample.setpoint)
        if len(goals) != len(values):
            goals = goals[:1] * len(values)
        in_force = sample.applied
        if in_force is None or not is_usable(in_force):
            in_force = action.command if is_usable(action.command) else None
        commands = () if in_force is None else as_tuple(in_force)
        found: list[tuple[Kind, str]] = []
        before = state.channels if len(state.channels) == len(values) else (Channel(),) * len(values)
        paired = commands if len(commands) == len(values) else (None,) * len(values)
        looked = [
            self._channel(channel, state, goal, value, command, found)
            for channel, goal, value, command in zip(before, goals, values, paired, strict=True)
        ]
        channels, off_goal = tuple([channel for channel, _ in looked]), any(side for _, side in looked)
        saturated = state.saturated + 1 if action.saturated else 0
        unreached = state.unreached + 1 if action.saturated and off_goal else 0
        if saturated:
            self._limits(saturated, unreached, action, sample, found)
        well = 0 if off_goal or found else state.well + 1
        mean = _running_mean(state.mean, commands) if well else None
        safe = mean if mean is not None and well >= self.patience else state.safe
        trials = 0 if well >= self.patience else state.trials
        active: tuple[str, ...] = ()
        verdict = _OK
        if found:
            verdict = self._verdict(found, state, channels, safe, scalar=not isinstance(in_force, tuple))
            active = tuple(notice.kind for notice in verdict.notices)
        return GuardState(
            state.samples + 1,
            channels,
            0,
            saturated,
            unreached,
            well,
            mean,
            safe,
            active,
            trials,
            state.load_period,
            state.load_range,
        ), verdict

    def stop(self, state: GuardState, verdict: Verdict, setpoint: Value) -> tuple[GuardState, Hold | None]:
        """Begin to watch what follows a freeze or a retreat; None: the cause needs no watching."""
        severe = {notice.kind for notice in verdict.notices if notice.response in ("freeze", "retreat")}
        cause = next((cause for cause in _CAUSES if cause in severe), None)
        if cause is None:
            return state, None
        swing = _largest(state.channels)
        if cause == "oscillation":
            hold = Hold(cause, holding.swing_size(max(swing.above.peak, swing.below.peak)), swing.period)
        else:
            hold = Hold(cause, self._allowed(as_tuple(setpoint)[0]))
        # what the channels saw was the loop's doing: they start afresh
        return replace(state, channels=(), well=0), hold

    def watch(
        self, hold: Hold, state: GuardState, sample: Sample
    ) -> tuple[GuardState, Hold | None, Release | None]:
        """Look at one more sample of a stopped controller, after `check`; with a release there is no hold."""
        measured = sample.measurement
        if measured is None or not is_usable(measured):
            return state, hold, None
        after, release = holding.watch(hold, as_tuple(measured)[0], state.well, state.trials, self.patience)
        if release is None:
            return state, after, None
        return (
            replace(
                state,
                channels=(),
                well=0,
                trials=state.trials + 1 if release.trial else state.trials,
                load_period=release.load_period or state.load_period,
                load_range=max(release.load_range, state.load_range),
            ),
            None,
            release,
        )

    def _missing(self, state: GuardState, sample: Sample) -> tuple[GuardState, Verdict]:
        """Nothing can be said about the gain across a gap: the channels start afresh."""
        missing = state.missing + 1
        found: list[tuple[Kind, str]] = []
        if missing >= self.missing_after:
            what = f"{self.measurement_name} is {_format(sample.measurement)}"
            if is_usable(sample.measurement):
                what = f"the set point is {_format(sample.setpoint)}"
            found.append(("missing", f"{what}, for {missing} samples now"))
        verdict = self._verdict(found, state, (), state.safe, scalar=not isinstance(sample.applied, tuple))
        after = GuardState(
            state.samples + 1,
            missing=missing,
            safe=state.safe,
            active=tuple(n.kind for n in verdict.notices),
            trials=state.trials,
            load_period=state.load_period,
            load_range=state.load_range,
        )
        return after, verdict

    def _channel(
        self,
        channel: Channel,
        state: GuardState,
        goal: float,
        value: float,
        command: float | None,
        found: list[tuple[Kind, str]],
    ) -> tuple[Channel, int]:
        """The channel after this sample, and the side of the goal on which it is off (0: within the tolerance)."""
        error, allowed = goal - value, self._allowed(goal)
        side = 0 if abs(error) <= allowed else 1 if error > 0.0 else -1
        same = value == channel.measurement
        repeated = channel.repeated + 1 if same else 1
        since = channel.repeated_since if same else command
        swing = oscillation.follow(channel.swing, state.samples, error, allowed)
        if swing.alike >= self.swings:
            found.append(("oscillation", self._swinging(swing, goal)))
        if command is None:
            return Channel(value, repeated, since, None, swing), side
        if side and repeated > self.stale_after and since is not None and self._moved(since, command):
            text = f"{self.measurement_name} has been exactly {value:.4g} for {repeated} samples"
            found.append(("stale", f"{text} while {self.command_name} went from {since:.4g} to {command:.4g}"))
        spell = gain_watch.follow(channel.spell, side, command, value) if side else None
        if spell is not None and spell.samples > self.patience and self._moved(spell.start_command, command):
            finding = gain_watch.judge(spell, command, error)
            by_load = finding == "inverted" and abs(value - spell.start_measurement) <= state.load_range
            if finding is not None and not by_load:
                found.append((finding, self._answer(finding, spell, goal, value, command)))
        return Channel(value, repeated, since, spell, swing), side

    def _limits(
        self, saturated: int, unreached: int, action: Action, sample: Sample, found: list[tuple[Kind, str]]
    ) -> None:
        where = f"{self.command_name} has been at its {'upper' if action.saturated > 0 else 'lower'} limit"
        if unreached > self.patience:
            seen = f"{self.measurement_name} is {_format(sample.measurement)}"
            text = (
                f"{where} for {unreached} samples and {seen}: the goal {_format(sample.setpoint)} is out of reach"
            )
            found.append(("unreachable", text))
        elif saturated > self.saturated_after:
            found.append(("saturated", f"{where} for {saturated} samples"))

    def _verdict(
        self,
        found: list[tuple[Kind, str]],
        before: GuardState,
        channels: tuple[Channel, ...],
        safe: tuple[float, ...] | None,
        *,
        scalar: bool,
    ) -> Verdict:
        if not found:
            return _OK
        by_load = holding.is_same(_largest(channels).period, before.load_period)
        notices = tuple(
            Notice(kind, reason, response, fresh=kind not in before.active)
            for kind, reason in found
            if (response := self._response(kind, safe, by_load=by_load)) != "ignore"
        )
        if not notices:
            return _OK
        response = max((notice.response for notice in notices), key=_SEVERITY.index)
        if response != "retreat" or safe is None:
            return Verdict(response, None, notices)
        return Verdict(response, safe[0] if scalar and len(safe) == 1 else safe, notices)

    def _response(self, kind: Kind, safe: tuple[float, ...] | None, *, by_load: bool) -> Response:
        wanted: Response = getattr(self, f"on_{kind}")
        if kind == "oscillation" and by_load and wanted != "ignore":
            return "alert"
        # nowhere to retreat to: the loop was never well
        return "freeze" if wanted == "retreat" and safe is None else wanted

    def _allowed(self, goal: float) -> float:
        return max(self.tolerance * abs(goal), self.tolerance_absolute)

    def _moved(self, start: float, command: float) -> bool:
        return command != start and abs(command - start) >= self.least_move * max(abs(start), abs(command))

    def _answer(self, finding: str, spell: Spell, goal: float, value: float, command: float) -> str:
        went = f"{self.command_name} went from {spell.start_command:.4g} to {command:.4g}"
        if finding == "lost":
            now = f"it is at {value:.4g}, the goal is {goal:.4g}"
            return f"{self.measurement_name} did not answer while {went}: {now}"
        moved = f"{self.measurement_name} went from {spell.start_measurement:.4g} to {value:.4g}"
        return f"{moved}, away from the goal {goal:.4g}, while {went}: the gain has the wrong sign"

    def _swinging(self, swing: Swing, goal: float) -> str:
        low, high = goal - swing.below.peak, goal + swing.above.peak
        return (
            f"{self.measurement_name} swings between {low:.4g} and {high:.4g} around {goal:.4g} with a period of"
            f" {swing.period:.3g} samples, {swing.alike} half waves so far"
        )


def _largest(channels: tuple[Channel, ...]) -> Swing:
    """The swing of the channel that has swung most regularly."""
    return max((channel.swing for channel in channels), key=lambda swing: swing.alike, default=Swing())


def _running_mean(mean: tuple[float, ...] | None, commands: tuple[float, ...]) -> tuple[float, ...] | None:
    """The mean command while the loop is well: one noisy command is not safe to retreat to."""
    if not commands:
        return mean
    if mean is None or len(mean) != len(commands):
        return commands
    return tuple([ewma(m, c, _MEAN) for m, c in zip(mean, commands, strict=True)])


def _format(value: Value | None) -> str:
    if value is None:
        return "missing"
    if isinstance(value, tuple):
        return f"({', '.join(f'{v:.4g}' for v in value)})"
    return f"{value:.4g}"
