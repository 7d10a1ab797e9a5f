"""Shared by `flyball design` and `flyball verify`: read plants and gains, show a certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from flyball.cli.output import table
from flyball.cli.plot import FREE_RUN, MEASURED, ONE_STEP, new_figure, save_figure
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from flyball.control.gains import AnyGains, Kind
    from flyball.control.models import Array, Arx
    from flyball.control.verification.verify import Certificate

# Numbers are parsed here, not by Typer, so that the error is one sentence that names the option.
AOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--a", metavar="A", help="Coefficient of y(k); several, separated by commas, for a higher order."
    ),
]
BOption: TypeAlias = Annotated[
    str,
    typer.Option("--b", metavar="B", help="Coefficient of u(k−D); several, separated by commas, for more inputs."),
]
DelayOption: TypeAlias = Annotated[str, typer.Option("--delay", metavar="D", help="Input delay D in samples.")]
ControllerOption: TypeAlias = Annotated[
    str, typer.Option("--controller", metavar="p|pi|pid|state", help="Kind of controller.")
]
FilterOption: TypeAlias = Annotated[
    str, typer.Option("--derivative-filter", metavar="F", help="Pole of the filter on the D part, >= 0 and < 1.")
]

CovarianceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--covariance",
        metavar="AA,AB,BB",
        help="Variance of a, covariance, variance of b, as identify prints; the loop must be stable on all models "
        "in that region.",
    ),
]

_LARGEST = 1e50  # products of such numbers are still finite
_LONGEST_DELAY = 500  # the loop has a pole for each sample of it
EXIT = {"accepted": 0, "unstable": 1, "fragile": 3}


def number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidValue(f"{option} must be a number such as 0.26 or -134, got {text!r}")
    if abs(value) > _LARGEST:
        raise InvalidValue(f"{option} must be between {-_LARGEST:g} and {_LARGEST:g}, got {text!r}")
    return value


def numbers(option: str, text: str) -> tuple[float, ...]:
    return tuple(number(option, part) for part in text.split(","))


def plant_from(a: str, b: str, delay: str) -> Arx:
    from flyball.control.models import Arx

    if not delay.strip().isdecimal() or len(delay) > 9 or int(delay) > _LONGEST_DELAY:
        raise InvalidValue(f"--delay must be an integer from 0 to {_LONGEST_DELAY}, got {delay!r}")
    return Arx(numbers("--a", a), numbers("--b", b), int(delay))


def covariance_from(text: str) -> list[list[float]]:
    values = numbers("--covariance", text)
    if len(values) != 3:
        raise InvalidValue(f"--covariance must be three numbers AA,AB,BB, got {text!r}")
    variance_a, covariance, variance_b = values
    if variance_a < 0 or variance_b < 0 or covariance**2 > variance_a * variance_b:
        raise InvalidValue(
            f"--covariance must be AA,AB,BB with AA >= 0, BB >= 0 and AB² <= AA·BB, got {text!r}: no others are "
            "the covariance of two estimates"
        )
    return [[values[0], values[1]], [values[1], values[2]]]


def filter_from(kind: Kind, text: str) -> float:
    """The pole of the filter on the D part, which only a PID has."""
    pole = number("--derivative-filter", text)
    if not 0.0 <= pole < 1.0:
        raise InvalidValue(f"--derivative-filter must be >= 0 and < 1, got {text!r}")
    if pole and kind != "pid":
        raise InvalidValue(f"--controller {kind} has no D part: --derivative-filter {text} is for pid; remove it")
    return pole


def kind_from(text: str) -> Kind:
    for kind in _KINDS:
        if text.lower() == kind:
            return kind
    raise InvalidValue(f"--controller must be p, pi, pid or state, got {text!r}")


_KINDS: tuple[Kind, ...] = ("p", "pi", "pid", "state")


def gains_document(gains: AnyGains | None) -> dict[str, Any] | None:
    from flyball.control.gains import Gains

    if gains is None:
        return None
    if isinstance(gains, Gains):
        extra = {
            name: getattr(gains, name) for name in ("derivative_filter", "feed_forward") if getattr(gains, name)
        }
        return {"kp": gains.kp, "ki": gains.ki, "kd": gains.kd, **extra}
    return {"kp": None, "ki": gains.ki, "kd": None, "ky": gains.ky, "ku": gains.ku}


def document(certificate: Certificate, nearest: AnyGains | None = None) -> dict[str, Any]:
    """Convert the certificate to JSON; missing or infinite numbers are null."""
    plant, region = certificate.plant, certificate.robustness
    return {
        "verdict": certificate.verdict,
        "reason": certificate.reason,
        "method": certificate.method,
        "controller": certificate.controller,
        "plant": {"a": _single(plant.a), "b": _single(plant.b), "delay": plant.delay},
        "gains": gains_document(certificate.gains),
        "poles": certificate.poles,
        "pole_radius": certificate.radius,
        "jury": {"stable": certificate.jury.stable, "ratios": certificate.jury.ratios},
        "gain_margin": certificate.gain_margin,
        "gain_reduction": certificate.gain_reduction,
        "phase_margin_deg": certificate.phase_margin_deg,
        "delay_margin": certificate.delay_margin,
        "sensitivity_peak": certificate.sensitivity_peak,
        "settling": certificate.settling,
        "settling_step": certificate.settling_step,
        "overshoot": certificate.overshoot,
        "steady_state_error": certificate.steady_state_error,
        "robustness": region
        and {
            "confidence": region.confidence,
            "models": region.models,
            "stable_fraction": region.stable_fraction,
            "worst_radius": region.worst_radius,
        },
        "nearest": gains_document(nearest),
    }


def _single(values: Sequence[float]) -> float | Sequence[float]:
    return values[0] if len(values) == 1 else values


def readable(certificate: Certificate, nearest: AnyGains | None = None) -> str:
    """Format the verdict with its reason, then the figures."""
    rows: list[tuple[str, object, str]] = [
        *((name, value, "") for name, value in _flat(gains_document(certificate.gains))),
        ("pole radius", certificate.radius, "below 1 is stable"),
        ("Jury test", "stable" if certificate.jury.stable else "unstable", ""),
    ]
    if certificate.verdict != "unstable":
        rows += [
            ("gain margin", _or_any(certificate.gain_margin), "2 or more"),
            ("gain reduction", certificate.gain_reduction, "0.5 or less"),
            ("phase margin", _or_any(certificate.phase_margin_deg), "30° or more"),
            ("delay margin", _or_any(certificate.delay_margin), "samples"),
            ("sensitivity peak", certificate.sensitivity_peak, "2.5 or less"),
            ("settling", certificate.settling, "samples, slowest pole"),
            ("settling of a step", certificate.settling_step, "samples, within 2 %"),
            ("overshoot", certificate.overshoot, "of the step"),
            ("steady-state error", certificate.steady_state_error, "of the setpoint"),
        ]
    if certificate.robustness is not None:
        region = certificate.robustness
        rows.append(("robust", region.stable_fraction, f"of models in the {region.confidence:.0%} region stable"))
    poles = ", ".join(
        f"{pole.real:.3g}{pole.imag:+.3g}j" if abs(pole.imag) > 1e-4 else f"{pole.real:.3g}"
        for pole in certificate.poles
    )
    text = f"{certificate.verdict}: {certificate.reason}\n\n{table(_as_text(rows))}\npoles: {poles}"
    if nearest is not None:
        offer = ", ".join(f"{name}={value:.4g}" for name, value in _flat(gains_document(nearest)))
        text += f"\nnearest gains that pass: {offer}"
    return text


def _as_text(rows: list[tuple[str, object, str]]) -> list[tuple[str, str, str]]:
    return [(name, f"{value:.4g}" if isinstance(value, float) else str(value), unit) for name, value, unit in rows]


def _or_any(value: float | None) -> object:
    return "any" if value is not None and math.isinf(value) else value


def _flat(gains: dict[str, Any] | None) -> list[tuple[str, float]]:
    """List the gains by name, ky and ku one by one, without those that the controller does not have."""
    flat: list[tuple[str, float]] = []
    for name, value in (gains or {}).items():
        if isinstance(value, tuple):
            flat += [(f"{name}[{i}]", one) for i, one in enumerate(value)]
        elif value is not None and (value or name == "kp"):
            flat.append((name, value))
    return flat


def draw(certificate: Certificate, path: Path) -> None:
    """Draw the response to a step, the poles with the unit circle, and the loop gain as Bode and Nyquist plots."""
    from flyball.control.polynomials import closed_loop
    from flyball.control.verification.response import loop_gain, simulate_step

    loop = closed_loop(certificate.plant, certificate.gains.polynomials())
    samples = 15 if certificate.settling is None else int(min(400.0, max(12.0, 2.5 * certificate.settling)))
    output = simulate_step(loop.from_reference, loop.characteristic, samples)
    figure, (response, plane, size, phase, curve) = new_figure(5, width_in=6.5, row_height_in=3.2)
    response.step(range(samples), output, where="post", color=ONE_STEP, label="output")
    response.axhline(1.0, color=MEASURED, linestyle="--", linewidth=1.0, label="setpoint")
    response.set(
        xlabel="sample", ylabel="output / setpoint", title=f"Step of the setpoint ({certificate.verdict})"
    )
    response.legend(frameon=False)
    _draw_poles(plane, certificate.poles)
    _draw_bode(size, phase, *loop_gain(loop.numerator, loop.denominator))
    _draw_nyquist(curve, loop_gain(loop.numerator, loop.denominator)[1])
    save_figure(figure, path)


def _draw_bode(size: Axes, phase: Axes, frequencies: Array, gain: npt.NDArray[np.complex128]) -> None:
    import numpy as np

    size.loglog(frequencies, np.abs(gain), color=ONE_STEP)
    size.axhline(1.0, color=MEASURED, linestyle="--", linewidth=1.0)
    size.set(ylabel="|loop gain|", title="Bode plot of the loop gain")
    phase.semilogx(frequencies, np.degrees(np.unwrap(np.angle(gain))), color=ONE_STEP)
    phase.axhline(-180.0, color=MEASURED, linestyle="--", linewidth=1.0)
    phase.set(xlabel="radians per sample", ylabel="phase in degrees")


def _draw_nyquist(curve: Axes, gain: npt.NDArray[np.complex128]) -> None:
    import numpy as np

    near = gain[np.abs(gain) < 4.0]  # an integrator's far end would shrink all that matters
    curve.plot(near.real, near.imag, color=ONE_STEP)
    curve.plot(near.real, -near.imag, color=ONE_STEP, linestyle=":")
    angles = np.linspace(0.0, math.tau, 201)
    curve.plot(np.cos(angles), np.sin(angles), color=MEASURED, linewidth=1.0)
    curve.plot([-1.0], [0.0], "+", color=FREE_RUN, markersize=12, label="−1")
    curve.set(xlabel="real", ylabel="imaginary", title="Nyquist plot of the loop gain", aspect="equal")
    curve.legend(frameon=False)


def _draw_poles(plane: Axes, poles: Sequence[complex]) -> None:
    angles = [math.tau * i / 200 for i in range(201)]
    plane.plot([math.cos(t) for t in angles], [math.sin(t) for t in angles], color=MEASURED, linewidth=1.0)
    inside = [pole for pole in poles if abs(pole) < 1.0]
    outside = [pole for pole in poles if abs(pole) >= 1.0]
    for group, colour, label in ((inside, ONE_STEP, "inside"), (outside, FREE_RUN, "outside")):
        if group:
            plane.plot(
                [p.real for p in group], [p.imag for p in group], "x", color=colour, label=label, markersize=8
            )
    plane.set(xlabel="real", ylabel="imaginary", title="Closed-loop poles and the unit circle")
    plane.set_aspect("equal", adjustable="datalim")
    plane.legend(frameon=False, loc="upper right")
