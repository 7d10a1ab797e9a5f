"""flyball tune: identify a live consumer or a pipeline's lanes, and write the config that holds the goal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flyball.cli.output import JsonOption, note, print_json, table
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.consumer.config import ConsumerConfig, ConsumerFile
    from flyball.consumer.tune import Tuning
    from flyball.control.record import LoopRecord
    from flyball.control.tuning import Candidate


def command(
    url: Annotated[str, typer.Argument(help="Broker such as amqp://localhost/, or a pipeline's config.toml.")],
    handler: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="What handles a message.")] = "",
    goal: Annotated[str, typer.Option(metavar="rate=N", help="The rate to hold, in messages a second.")] = "",
    queue: Annotated[str | None, typer.Option(help="The queue to consume.")] = None,
    channel: Annotated[str | None, typer.Option(help="The channel to consume, with --group.")] = None,
    group: Annotated[str | None, typer.Option(help="The group to be a member of.")] = None,
    signal: Annotated[
        str, typer.Option(metavar="staircase|prbs", help="How the window is moved in the experiment.")
    ] = "staircase",
    max_window: Annotated[int, typer.Option(min=2, max=65_535, help="Widest window of the experiment.")] = 30,
    samples: Annotated[int, typer.Option(min=12, max=3600, help="Length of the experiment.")] = 30,
    hold: Annotated[int, typer.Option(min=1, help="Samples for which each window is held.")] = 3,
    period: Annotated[float, typer.Option(min=0.1, help="Seconds a sample.")] = 1.0,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Handlers at a time.")] = None,
    settling: Annotated[float, typer.Option(min=1.0, help="Settling of the candidates, in samples.")] = 4.0,
    overshoot: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Overshoot of the candidates, as a fraction.")
    ] = 0.1,
    controller: Annotated[
        str | None, typer.Option(help="Which candidate the config gets (default: little).")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add this workload to the config; consumers switch between workloads."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="CONFIG.toml", help="Write the config here.")] = None,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Move the window of a live consumer within bounds, fit a model, and offer controllers with certificates.

    Messages are consumed and handled as always. The config that --out writes is run by `flyball consume --config`.

    With a pipeline's config: move the admission of its lanes instead, while it runs. --out writes the gains of
    flow control, which the pipeline reads where `lanes.flow` names that file.
    """
    check_plot_path(plot)
    if url.endswith(".toml"):
        from flyball.cli.tune_pipeline import tune_pipeline

        tune_pipeline(Path(url), signal, samples, hold, settling, overshoot, out, plot, json=json)
        return
    for name, value in (("--handler", handler), ("--goal", goal)):
        if not value:
            raise InvalidValue(f"tuning the consumer of a broker needs {name}")
    if out is not None and not out.parent.is_dir():
        raise InvalidValue(f"there is no folder {str(out.parent)!r} to write the config in; create it first")
    kind: Literal["staircase", "prbs"] = "prbs" if signal == "prbs" else "staircase"
    if signal not in ("staircase", "prbs"):
        raise InvalidValue(f"--signal is staircase or prbs, got {signal!r}")
    if profile is not None and (out is None or controller not in (None, "pi")):
        raise InvalidValue("--profile adds PI gains to the config of --out: name it, and leave out --controller")
    from flyball.consumer.config import ConsumerConfig, load_handler, to_toml
    from flyball.consumer.tune import model_table, tune
    from flyball.loops.toml import check

    load_handler(handler)
    given = {
        "url": url,
        "handler": handler,
        "queue": queue,
        "channel": channel,
        "group": group,
        "goal": goal,
        "max_window": float(max_window),
        "period_s": period,
        "concurrency": concurrency,
    }
    config = check(given, ConsumerConfig, "tune")
    before = None if profile is None or out is None else _file_so_far(out, config)
    found = asyncio.run(
        tune(
            config,
            kind=kind,
            samples=samples,
            hold_samples=hold,
            settling=settling,
            overshoot=overshoot,
            controller=controller or ("little" if profile is None else "pi"),
            told=_progress,
        )
    )
    if plot is not None:
        from flyball.cli.identify import draw

        draw(found.fit, found.windows, found.rates, ("window", "rate per s"), plot)
        note(f"picture saved in {plot}")
    if out is not None:
        if before is None or profile is None:
            out.write_text(to_toml(found.config, model_table(found.fit)))
        else:
            file = before.with_profile(found.profile(profile))
            out.write_text(to_toml(file.consumer, {}, file.profile))
            note(f"profiles in {out}: {', '.join(one.name for one in file.profile)}")
        note(f"config written; run it with: flyball consume --config {out}")
    if json:
        print_json(_document(found, out))
    else:
        _show(found)


def _file_so_far(out: Path, config: ConsumerConfig) -> ConsumerFile:
    """The config that a profile is added to: the one at `out`, if that is the same consumer, or a new one."""
    from flyball.consumer.config import ConsumerFile
    from flyball.loops.toml import load_toml

    if not out.exists():
        return ConsumerFile(consumer=config.model_copy(update={"max_window": 2000.0}))
    found = load_toml(out, ConsumerFile)
    for key in ("queue", "channel", "group", "handler"):
        there, wanted = getattr(found.consumer, key), getattr(config, key)
        if there != wanted:
            raise InvalidValue(
                f"{out} describes another consumer ({key} {there!r}, not {wanted!r}): name another file with --out"
            )
    return found


def _progress(record: LoopRecord) -> None:
    if isinstance(record.measurement, float) and isinstance(record.applied, float):
        note(f"window {record.applied:6.2f}  rate {record.measurement:9.1f}/s  {record.reason}")


def _document(found: Tuning, out: Path | None) -> dict[str, Any]:
    from flyball.consumer.tune import model_table

    return {
        "model": model_table(found.fit),
        "r2": found.fit.r2,
        "linear_range": list(found.fit.linear_range),
        "confidence": dict(found.fit.confidence),
        "warnings": list(found.fit.warnings),
        "samples": len(found.windows),
        "candidates": [_candidate(one) for one in found.candidates],
        "controller": found.config.controller,
        "out": None if out is None else str(out),
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    from flyball.cli.certificate import document

    return {
        "name": one.name,
        "config": one.config,
        "accepted": one.accepted,
        "reason": one.reason,
        "settling": one.settling,
        "certificate": None if one.certificate is None else document(one.certificate),
    }


def _show(found: Tuning) -> None:
    fit, model = found.fit, found.fit.model
    low, high = fit.linear_range
    typer.echo(f"y(k+1) = {model.a[0]:.3g}·y(k) + {model.b[0]:.4g}·u(k) {model.offset:+.4g}")
    typer.echo(f"R² {fit.r2:.3f}, linear for windows from {low:.3g} to {high:.3g}, {len(found.windows)} samples")
    for warning in fit.warnings:
        note(f"warning: {warning}")
    rows = []
    for one in found.candidates:
        certificate = one.certificate
        rows.append(
            (
                one.name,
                "refused" if certificate is None else certificate.verdict,
                one.settling,
                None if certificate is None else certificate.overshoot,
                ", ".join(f"{key}={value:.4g}" for key, value in one.config.items() if isinstance(value, float)),
                one.reason,
            )
        )
    typer.echo(
        "\n" + table(rows, header=("controller", "verdict", "settles in samples", "overshoot", "gains", "why"))
    )
