"""flyball tune: identify a live consumer or a pipeline's lanes, and write a config for its goal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flyball.cli.output import JsonOption, check_out_path, note, print_json, table
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.consumer.config import ConsumerConfig, ConsumerFile
    from flyball.consumer.tune import Tuning
    from flyball.control.record import LoopRecord
    from flyball.control.tuning import Candidate


def command(
    url: Annotated[
        str, typer.Argument(help="Broker URL, such as amqp://localhost/, or a pipeline's config.toml.")
    ],
    handler: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="Handler of messages.")] = "",
    goal: Annotated[str, typer.Option(metavar="rate=N", help="Set point of the rate in messages a second.")] = "",
    queue: Annotated[str | None, typer.Option(help="Queue to consume.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel to consume, with --group.")] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group to join.")] = None,
    signal: Annotated[
        str, typer.Option(metavar="staircase|prbs", help="Test signal on the window.")
    ] = "staircase",
    max_window: Annotated[int, typer.Option(min=2, max=65_535, help="Largest window of the experiment.")] = 30,
    samples: Annotated[int, typer.Option(min=12, max=3600, help="Length of the experiment in samples.")] = 30,
    hold: Annotated[int, typer.Option(min=1, help="Samples for each window.")] = 3,
    period: Annotated[float, typer.Option(min=0.1, help="Sample time in seconds.")] = 1.0,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Number of concurrent handlers.")] = None,
    settling: Annotated[float, typer.Option(min=1.0, help="Settling time of the candidates in samples.")] = 4.0,
    overshoot: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Overshoot of the candidates as a fraction of the step.")
    ] = 0.1,
    controller: Annotated[
        str | None, typer.Option(help="Candidate to write to the config (default: little).")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add the gains to the config as this workload profile."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="CONFIG.toml", help="Write the config to this file.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")
    ] = False,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Vary the window of a live consumer, identify a model, and design controllers with certificates.

    Messages are consumed and handled as usual. The signal is repeated, up to four times in all, while the model is
    too uncertain for the controller. Run the config that --out writes with `flyball consume --config`.

    With a pipeline's config: vary the admission of its lanes instead, while it runs. --out then writes the gains
    of flow control; set `lanes.flow` to that file.
    """
    check_plot_path(plot)
    if url.endswith(".toml"):
        from flyball.cli.tune_pipeline import tune_pipeline

        tune_pipeline(
            Path(url), signal, samples, hold, settling, overshoot, out, plot, overwrite=overwrite, json=json
        )
        return
    for name, value in (("--handler", handler), ("--goal", goal)):
        if not value:
            raise InvalidValue(f"{name} is required to tune a consumer")
    check_out_path(out, overwrite=overwrite or profile is not None)
    kind: Literal["staircase", "prbs"] = "prbs" if signal == "prbs" else "staircase"
    if signal not in ("staircase", "prbs"):
        raise InvalidValue(f"--signal must be staircase or prbs, got {signal!r}")
    if profile is not None and (out is None or controller not in (None, "pi")):
        raise InvalidValue("--profile needs --out and excludes --controller other than pi")
    from flyball.consumer.config import ConsumerConfig, load_handler, to_toml
    from flyball.consumer.tune import CANDIDATES, model_table, rate_goal, tune
    from flyball.loops.toml import check

    load_handler(handler)
    if controller not in (None, *CANDIDATES):
        raise InvalidValue(f"--controller must be one of {', '.join(CANDIDATES)}, got {controller!r}")
    options = {
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
    config = check(options, ConsumerConfig, "tune")
    rate_goal(goal)
    asyncio.run(_check_queue(url, queue))
    before = None if profile is None or out is None else _existing_config(out, config)
    found = asyncio.run(
        tune(
            config,
            kind=kind,
            samples=samples,
            hold_samples=hold,
            settling=settling,
            overshoot=overshoot,
            controller=controller or ("little" if profile is None else "pi"),
            on_record=_progress,
            on_repeat=note,
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


async def _check_queue(url: str, queue: str | None) -> None:
    """Refuse a broker that does not answer, a file and a queue that do not exist, before anything is made."""
    from flyball.brokers import connect

    async with await connect(url, create=False) as broker:
        if queue is not None:
            await broker.depth(queue)


def _existing_config(out: Path, config: ConsumerConfig) -> ConsumerFile:
    """Read the config at `out`, which must be of the same consumer, or start a new one."""
    from flyball.consumer.config import ConsumerFile
    from flyball.loops.toml import load_toml

    if not out.exists():
        return ConsumerFile(consumer=config.model_copy(update={"max_window": 2000.0}))
    existing = load_toml(out, ConsumerFile)
    for key in ("queue", "channel", "group", "handler"):
        old, new = getattr(existing.consumer, key), getattr(config, key)
        if old != new:
            raise InvalidValue(f"{out} is the config of another consumer ({key} is {old!r}, not {new!r})")
    return existing


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
                "rejected" if certificate is None else certificate.verdict,
                one.settling,
                None if certificate is None else certificate.overshoot,
                ", ".join(f"{key}={value:.4g}" for key, value in one.config.items() if isinstance(value, float)),
                one.reason,
            )
        )
    typer.echo(
        "\n" + table(rows, header=("controller", "verdict", "settles in samples", "overshoot", "gains", "why"))
    )
