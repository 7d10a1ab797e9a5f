"""flyball tune CONFIG.toml: identify the lanes of a pipeline in open loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from flyball.cli.output import check_out_path, note, print_json, table
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.tuning import Candidate
    from flyball.pipeline.tune import FlowTuning


def tune_pipeline(
    config: Path,
    signal: str,
    samples: int,
    hold: int,
    settling: float,
    overshoot: float,
    out: Path | None,
    plot: Path | None,
    *,
    overwrite: bool,
    json: bool,
) -> None:
    from flyball.app.config import RunConfig
    from flyball.control.gains import Gains
    from flyball.loops.config import load_toml
    from flyball.pipeline.config.flow_gains import write_gains
    from flyball.pipeline.tune import tune

    if signal not in ("staircase", "prbs"):
        raise InvalidValue(f"--signal must be staircase or prbs, got {signal!r}")
    check_out_path(out, overwrite=overwrite)
    kind: Literal["staircase", "prbs"] = "prbs" if signal == "prbs" else "staircase"
    run_config = load_toml(config, RunConfig)
    folder = config.parent / run_config.folder
    folder.mkdir(parents=True, exist_ok=True)
    note("starting Spark; the input log is processed during the experiment")
    found = tune(
        run_config.url(folder),
        run_config.pipeline,
        folder,
        kind=kind,
        samples=samples,
        hold=hold,
        settling=settling,
        overshoot=overshoot,
        on_interval=lambda interval: note(f"admitted {interval.admitted_bytes / 1e6:8.3f} MB"),
    )
    if plot is not None:
        from flyball.cli.identify import draw

        u = [interval.admitted_bytes for interval in found.intervals[1:]]
        y = [interval.free_bytes for interval in found.intervals[1:]]
        draw(found.fit, u, y, ("admitted, bytes", "free, bytes"), plot)
        note(f"picture saved in {plot}")
    chosen = next((one for one in found.candidates if one.accepted), None)
    if out is not None:
        if chosen is None:
            raise InvalidValue(f"no controller is accepted for this queue: {found.candidates[0].reason}")
        write_gains(out, Gains(chosen.config["kp"], chosen.config["ki"]), found.fit.model, found.fit.r2)
        note(f'gains written; the pipeline reads them with lanes.flow = "{out}"')
    print_json(_document(found, out)) if json else _show(found)


def _document(found: FlowTuning, out: Path | None) -> dict[str, Any]:
    model = found.fit.model
    return {
        "model": {"a": model.a[0], "b": model.b[0], "c": model.offset, "delay": model.delay},
        "r2": found.fit.r2,
        "confidence": dict(found.fit.confidence),
        "samples": len(found.intervals),
        "candidates": [_candidate(one) for one in found.candidates],
        "out": None if out is None else str(out),
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    from flyball.cli.certificate import document

    return {
        "name": one.name,
        "kp": one.config.get("kp"),
        "ki": one.config.get("ki"),
        "accepted": one.accepted,
        "reason": one.reason,
        "certificate": None if one.certificate is None else document(one.certificate),
    }


def _show(found: FlowTuning) -> None:
    model = found.fit.model
    typer.echo(f"free(k+1) = {model.a[0]:.4g}·free(k) {model.b[0]:+.4g}·admitted(k), {model.delay} intervals late")
    typer.echo(
        f"R² {found.fit.r2:.4f}, {len(found.intervals)} intervals; the combiner's reading is not part of the model"
    )
    rows = [
        (
            one.name,
            "rejected" if one.certificate is None else one.certificate.verdict,
            None if one.certificate is None else one.certificate.settling_step,
            f"kp={one.config['kp']:.4g}, ki={one.config['ki']:.4g}" if one.config else "",
            one.reason,
        )
        for one in found.candidates
    ]
    typer.echo("\n" + table(rows, header=("controller", "verdict", "settles in", "gains", "why")))
