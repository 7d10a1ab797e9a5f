"""flyball identify --by: identify a model for each of many series, and print a summary."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flyball.cli.output import note, print_json, table
from flyball.cli.recording import Columns, is_telemetry, read_series
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.pipeline.many_series import Recording

_MAX_LISTED = 1000
_QUANTILES = (0.05, 0.5, 0.95)
_RESULT = ("a", "b", "c", "delay", "align", "r2", "r2_free_run", "rmse", "samples", "problem", "warnings")


def identify_by(
    recording: Recording, out: Path | None, *, delay: Any, align: Any, offset: bool, json: bool
) -> None:
    from flyball.pipeline.many_series import identify_series
    from flyball.pipeline.run.session import spark_session

    rows = recording.rows()  # checks the file before Spark starts
    if out is not None and out.exists():
        raise InvalidValue(f"folder {str(out)!r} exists already; give a new one")
    began_s = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="flyball-identify-"))
    try:
        note(f"{rows:,} samples: starting Spark")
        spark = spark_session("flyball-identify", workdir=scratch)
        ready_s = time.monotonic()
        try:
            models = out or scratch / "models"
            identify_series(spark, recording, models, delay=delay, align=align, offset=offset)
        finally:
            spark.stop()
        document = _summary(models, recording.by)
        document["seconds"] = round(time.monotonic() - ready_s, 3)
        document["start_seconds"] = round(ready_s - began_s, 3)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if json:
        print_json(document)
    else:
        _show(document, recording.by)
    if out is not None:
        note(f"models saved in {out}")
    elif document["series"] > _MAX_LISTED:
        note("use --out FOLDER to save the model of each series")


def identify_by_here(file: Path, columns: Columns, *, delay: Any, align: Any, offset: bool, json: bool) -> None:
    """Fit each series of a text file in this process: a text file is small enough."""
    from flyball.control.identification.identify import identify

    began_s = time.monotonic()
    by = columns.by or ""
    if align == "auto" and is_telemetry(file, columns):
        align = "next"
    models: list[dict[str, Any]] = []
    for label, (u, y) in read_series(file, columns).items():
        model: dict[str, Any] = dict.fromkeys(_RESULT, None)
        try:
            fit = identify(u, y, delay=delay, align=align, offset=offset, gaps=True)
        except InvalidValue as error:
            model["problem"] = str(error)
        else:
            model |= {"a": fit.model.a[0], "b": fit.model.b[0], "c": fit.model.offset, "delay": fit.model.delay}
            model |= {"align": fit.align, "r2": fit.r2, "r2_free_run": fit.r2_free_run, "rmse": fit.rmse}
            model |= {"samples": fit.score.samples, "warnings": list(fit.warnings)}
        models.append({by: label, **model})
    document = _document_of(models)
    document["seconds"] = round(time.monotonic() - began_s, 3)
    if json:
        print_json(document)
        return
    _show(document, by)
    for model in models:
        for warning in model["warnings"] or ():
            note(f"warning: {by} {model[by]}: {warning}")


def _document_of(models: list[dict[str, Any]]) -> dict[str, Any]:
    import numpy as np

    good = [model for model in models if model["problem"] is None]
    problems = Counter(model["problem"] for model in models if model["problem"] is not None)
    names = ("a", "b", "c", "r2", "r2_free_run", "rmse")
    return {
        "series": len(models),
        "fitted": len(good),
        "problems": dict(problems.most_common()),
        "quantiles": {
            name: dict(
                zip(
                    ("p5", "p50", "p95"),
                    np.quantile([model[name] for model in good], _QUANTILES).tolist(),
                    strict=True,
                )
            )
            for name in names
            if good
        },
        "delays": {str(delay): count for delay, count in Counter(model["delay"] for model in good).items()},
        "models": models,
    }


def _summary(models: Path, by: str) -> dict[str, Any]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = pq.read_table(models)
    good = rows.filter(pc.is_null(rows["problem"]))
    problems = pc.value_counts(rows["problem"].drop_null()).to_pylist()
    document: dict[str, Any] = {
        "series": rows.num_rows,
        "fitted": good.num_rows,
        "problems": {one["values"]: one["counts"] for one in sorted(problems, key=lambda one: -one["counts"])},
        "quantiles": {
            name: dict(
                zip(("p5", "p50", "p95"), pc.quantile(good[name], q=list(_QUANTILES)).to_pylist(), strict=True)
            )
            for name in ("a", "b", "c", "r2", "r2_free_run", "rmse")
            if good.num_rows
        },
        "delays": {str(one["values"]): one["counts"] for one in pc.value_counts(good["delay"]).to_pylist()},
    }
    if rows.num_rows <= _MAX_LISTED:
        document["models"] = rows.sort_by(by).to_pylist()
    return document


def _show(document: dict[str, Any], by: str) -> None:
    models = document.get("models", [])
    if models and len(models) <= 40:
        names = (by, "a", "b", "c", "delay", "r2", "samples", "problem")
        cells = [["" if model[name] is None else model[name] for name in names] for model in models]
        typer.echo(table(cells, header=names))
        typer.echo("")
    rows: list[tuple[object, ...]] = [
        (name, *(spread[q] for q in ("p5", "p50", "p95"))) for name, spread in document["quantiles"].items()
    ]
    if rows:
        typer.echo(table(rows, header=("of all series", "5 %", "median", "95 %")))
        typer.echo("")
    counts = [("series", document["series"]), ("fitted", document["fitted"])]
    counts += [(f"not: {problem}", count) for problem, count in document["problems"].items()]
    typer.echo(table([*counts, ("seconds, without start", round(document["seconds"], 1))]))
