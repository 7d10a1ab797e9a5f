"""flyball verify: verify controller gains for a model: accepted, fragile or unstable, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flyball.cli.certificate import (
    EXIT,
    AOption,
    BOption,
    ControllerOption,
    CovarianceOption,
    DelayOption,
    FilterOption,
    covariance_from,
    document,
    draw,
    filter_from,
    kind_from,
    number,
    numbers,
    plant_from,
    readable,
)
from flyball.cli.output import JsonOption, note, print_json
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.gains import AnyGains, Kind

# The gains of each kind of controller.
_NEEDS = {"p": ("kp",), "pi": ("kp", "ki"), "pid": ("kp", "ki", "kd"), "state": ("ki", "ky")}


def command(
    a: AOption,
    b: BOption,
    controller: ControllerOption,
    delay: DelayOption = "0",
    kp: Annotated[str | None, typer.Option(metavar="KP", help="Gain on the error.")] = None,
    ki: Annotated[str | None, typer.Option(metavar="KI", help="Gain on the sum of errors.")] = None,
    kd: Annotated[str | None, typer.Option(metavar="KD", help="Gain on the change of the error.")] = None,
    ky: Annotated[
        str | None, typer.Option(metavar="K0,…", help="State feedback: gains on y(k), y(k−1), …")
    ] = None,
    ku: Annotated[
        str | None, typer.Option(metavar="K1,…", help="State feedback: gains on u(k−1), u(k−2), …")
    ] = None,
    derivative_filter: FilterOption = "0",
    covariance: CovarianceOption = None,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Verify gains for y(k+1) = a·y(k) + b·u(k−D) before they act.

    Exit code 0: accepted; 3: fragile (gain margin < 2, phase margin < 30° or sensitivity peak > 2.5); 1: unstable.
    """
    plant = plant_from(a, b, delay)
    given = {"kp": kp, "ki": ki, "kd": kd, "ky": ky, "ku": ku}
    gains = _gains(
        kind_from(controller), {name: text for name, text in given.items() if text is not None}, derivative_filter
    )
    matrix = None if covariance is None else covariance_from(covariance)
    check_plot_path(plot)
    from flyball.control.design.nearest import suggest
    from flyball.control.verification.verify import verify

    certificate = verify(plant, gains, covariance=matrix)
    nearest = None if certificate.accepted else suggest(plant, gains, covariance=matrix)
    if plot is not None:
        draw(certificate, plot)
        note(f"picture saved in {plot}")
    if json:
        print_json({**document(certificate, nearest), "controller": kind_from(controller)})
    else:
        typer.echo(readable(certificate, nearest))
    raise typer.Exit(EXIT[certificate.verdict])


def _gains(kind: Kind, given: dict[str, str], derivative_filter: str) -> AnyGains:
    from flyball.control.gains import Gains, StateGains

    filter_pole = filter_from(kind, derivative_filter)
    allowed = {*_NEEDS[kind], *(("ku",) if kind == "state" else ())}
    for name in _NEEDS[kind]:
        if name not in given:
            raise InvalidValue(f"--controller {kind} needs --{name}")
    for name in given:
        if name not in allowed:
            raise InvalidValue(f"--controller {kind} has no --{name}, got {given[name]!r}; remove it")
    if kind == "state":
        ku = numbers("--ku", given["ku"]) if "ku" in given else ()
        return StateGains(number("--ki", given["ki"]), numbers("--ky", given["ky"]), ku)
    values = [number(f"--{name}", given[name]) for name in _NEEDS[kind]]
    return Gains.of(values, filter_pole)
