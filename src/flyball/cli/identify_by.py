"""flyball identify --by: identify a model for each of many series, and print a summary."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from flyball.cli.output import note, print_json, table
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.pipeline.many_series import Recording

_MAX_LISTED = 1000
_QUANTILES = (0.05, 0.5, 0.95)


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
