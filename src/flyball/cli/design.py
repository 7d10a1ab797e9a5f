"""flyball design: design controller gains for a model, with their certificate."""

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
    plant_from,
    readable,
)
from flyball.cli.output import JsonOption, note, print_json
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.design.design import FragileDesign, UnstableDesign


def command(
    a: AOption,
    b: BOption,
    controller: ControllerOption,
    delay: DelayOption = "0",
    poles: Annotated[
        str | None, typer.Option(metavar="P1,P2,…", help="Closed-loop poles, such as 0.5+0.33j,0.5-0.33j.")
    ] = None,
    settling: Annotated[str | None, typer.Option(metavar="K", help="Settling time in samples.")] = None,
    overshoot: Annotated[
        str | None, typer.Option(metavar="F", help="Overshoot as a fraction of the step.")
    ] = None,
    feed_forward: Annotated[bool, typer.Option("--feed-forward", help="Add static feed-forward.")] = False,
    derivative_filter: FilterOption = "0",
    covariance: CovarianceOption = None,
    allow_fragile: Annotated[bool, typer.Option("--allow-fragile", help="Accept a fragile design.")] = False,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Design a controller for y(k+1) = a·y(k) + b·u(k−D) from poles, or from settling and overshoot.

    Exit code 0: gains found; 3: only a fragile design meets the specification and --allow-fragile is not given;
    1: the poles give an unstable loop; 2: no such controller exists, or the input is invalid.
    """
    plant = plant_from(a, b, delay)
    kind = kind_from(controller)
    pole_list = None if poles is None else [_pole(text) for text in poles.split(",")]
    settling_samples = None if settling is None else number("--settling", settling)
    fraction = None if overshoot is None else number("--overshoot", overshoot)
    filter_pole = filter_from(kind, derivative_filter)
    if pole_list is None and settling_samples is None:
        raise InvalidValue("a specification is needed: --poles, or --settling K with --overshoot F")
    matrix = None if covariance is None else covariance_from(covariance)
    check_plot_path(plot)
    from flyball.control.design.design import FragileDesign, UnstableDesign, design

    try:
        found = design(
            plant,
            kind,
            poles=pole_list,
            settling=settling_samples,
            overshoot=fraction,
            feed_forward=feed_forward,
            derivative_filter=filter_pole,
            allow_fragile=allow_fragile,
            covariance=matrix,
        )
    except (FragileDesign, UnstableDesign) as refused:
        _refuse(refused, json)
        raise typer.Exit(EXIT[refused.certificate.verdict]) from None
    if plot is not None:
        draw(found.certificate, plot)
        note(f"picture saved in {plot}")
    if json:
        print_json({**document(found.certificate), "controller": kind, "note": found.note})
        return
    typer.echo(readable(found.certificate))
    if found.note:
        note(f"note: {found.note}")


def _refuse(refused: FragileDesign | UnstableDesign, json: bool) -> None:
    """Print the reason and the certificate of the refused design, without gains."""
    note(f"flyball: {refused}" + (" (--allow-fragile)" if refused.certificate.verdict == "fragile" else ""))
    if json:
        print_json({**document(refused.certificate, refused.nearest), "gains": None, "reason": str(refused)})


def _pole(text: str) -> complex:
    try:
        return complex(text.strip().replace(" ", "").replace("i", "j"))
    except ValueError:
        raise InvalidValue(f"--poles must be numbers such as 0.5,0.5+0.33j, got {text!r}") from None
