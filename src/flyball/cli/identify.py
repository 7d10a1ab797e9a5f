"""flyball identify: identify a model from a recording of input and output, with the evidence for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.columns import read_columns
from flyball.cli.output import JsonOption, note, print_json, table
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.cli.recording import Columns, is_telemetry, join, read_series
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    import numpy.typing as npt

    from flyball.control.identification.identify import Fit
    from flyball.control.identification.residuals import Score
    from flyball.control.models import Array


# Limits of what a picture can show legibly: samples over time, and points.
_MAX_TIME, _MAX_POINTS = 400, 5000


def command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="CSV, TSV or Parquet with a header and one row per sample; several are recordings of one plant.",
        ),
    ],
    input_column: Annotated[
        str,
        typer.Option("--input", metavar="COL", help="Column of the input u (default: as in loop telemetry)."),
    ] = "command",
    output_column: Annotated[
        str,
        typer.Option("--output", metavar="COL", help="Column of the output y (default: as in loop telemetry)."),
    ] = "measurement",
    delay: Annotated[str, typer.Option(metavar="N|auto", help="Input delay D in samples.")] = "auto",
    align: Annotated[
        str,
        typer.Option(
            metavar="same|next|auto",
            help="Whether a row's output belongs to the input of the same or the previous row.",
        ),
    ] = "auto",
    offset: Annotated[
        bool, typer.Option("--offset/--no-offset", help="Estimate the offset c, or assume 0.")
    ] = True,
    test: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Second recording, to test the model on.")
    ] = None,
    plot: PlotOption = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COL", help="Identify a model for each value of COL (Parquet files: on Spark)."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COL", help="Time column: where it advances by more than usual, rows are missing."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --by: folder for the models (Parquet).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fit y(k+1) = a·y(k) + b·u(k−D) + c to a recording, and print the evidence for the model."""
    samples = _delay(delay)
    alignment = _align(align)
    if input_column == output_column:
        raise InvalidValue(f"--input and --output must be different columns, got {input_column!r} for both")
    if by is not None:
        if test is not None or plot is not None:
            raise InvalidValue("--by excludes --test and --plot")
        if len(files) > 1:
            raise InvalidValue(f"--by takes one file, got {len(files)}")
        _identify_by(
            files[0], Columns(input_column, output_column, time, by), out, samples, alignment, offset, json
        )
        return
    if out is not None:
        raise InvalidValue("--out needs --by COL")
    check_plot_path(plot)
    from flyball.control.identification.identify import identify

    columns = Columns(input_column, output_column, time)
    pieces = [read_series(file, columns)[""] for file in files]
    u, y = join(pieces)
    if alignment == "auto" and all(is_telemetry(file, columns) for file in files):
        alignment = "next"
    named = ", ".join(map(str, files))
    try:
        names = (f"input {input_column!r}", f"output {output_column!r}")
        fit = identify(u, y, delay=samples, align=alignment, offset=offset, names=names, gaps=True)
    except InvalidValue as error:
        raise InvalidValue(f"{named}: {error}") from None
    tested = None
    if test is not None:
        test_u, test_y = read_columns(test, (input_column, output_column))
        try:
            tested = fit.evaluate(test_u, test_y)
        except InvalidValue as error:
            raise InvalidValue(f"{test}: {error}") from None
    if plot is not None:
        longest_u, longest_y = max(_without_gaps(u, y), key=lambda piece: piece[0].size)
        draw(fit, longest_u, longest_y, (input_column, output_column), plot)
        note(f"picture saved in {plot}")
    if json:
        print_json(_document(fit, tested))
        return
    _show(fit, tested, sum(stretch.size for stretch, _ in _without_gaps(u, y)))


def _without_gaps(u: Array, y: Array) -> list[tuple[Array, Array]]:
    """The stretches without a missing value, for a picture."""
    import numpy as np

    rows = np.flatnonzero(np.isfinite(u) & np.isfinite(y))
    stretches = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [(u[stretch], y[stretch]) for stretch in stretches]


def _identify_by(
    file: Path, columns: Columns, out: Path | None, delay: Any, align: Any, offset: bool, json: bool
) -> None:
    from flyball.cli.identify_by import identify_by, identify_by_here

    if file.suffix == ".parquet" or file.is_dir():
        from flyball.pipeline.many_series import Recording

        recording = Recording(file, columns.by or "", columns.time or "time", columns.input, columns.output)
        identify_by(recording, out, delay=delay, align=align, offset=offset, json=json)
        return
    if out is not None:
        raise InvalidValue(f"--out needs a Parquet file, got {str(file)!r}; --json prints the models")
    identify_by_here(file, columns, delay=delay, align=align, offset=offset, json=json)


def _delay(text: str) -> Any:
    if text == "auto":
        return text
    if not text.isdecimal() or len(text) > 9:
        raise InvalidValue(f"--delay must be an integer >= 0 or auto, got {text!r}")
    return int(text)


def _align(text: str) -> Any:
    if text not in ("same", "next", "auto"):
        raise InvalidValue(f"--align must be same, next or auto, got {text!r}")
    return text


def _covariance(fit: Fit) -> tuple[float, float, float]:
    """As `verify` and `design` take it: variance of a, covariance of a and b, variance of b."""
    return float(fit.covariance[0, 0]), float(fit.covariance[0, 1]), float(fit.covariance[1, 1])


def _document(fit: Fit, tested: Score | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "a": fit.model.a[0],
        "b": fit.model.b[0],
        "c": fit.model.offset,
        "delay": fit.model.delay,
        "r2": fit.r2,
        "rmse": fit.rmse,
        "r2_free_run": fit.r2_free_run,
        "design_delay": fit.design_delay,
        "covariance": list(_covariance(fit)),
        "method": fit.method,
        "linear_range": list(fit.linear_range),
        "confidence": dict(fit.confidence),
        "residuals_white": fit.residuals_white,
        "warnings": list(fit.warnings),
        "align": fit.align,
        "samples": fit.score.samples,
        "confidence_level": fit.confidence_level,
        "whiteness_p": fit.whiteness.p_value,
        "stable": fit.model.is_stable,
    }
    if tested is not None:
        document["test"] = {
            "r2": tested.r2,
            "rmse": tested.rmse,
            "r2_free_run": tested.r2_free_run,
            "samples": tested.samples,
        }
    return document


def _delay_text(fit: Fit) -> str:
    if fit.design_delay == fit.model.delay:
        return str(fit.model.delay)
    return f"{fit.model.delay}, or {fit.design_delay} if rows are same-row: design for {fit.design_delay}"


def _show(fit: Fit, tested: Score | None, recorded: int) -> None:
    model = fit.model
    lag = "" if model.delay == 0 else f"−{model.delay}"
    offset = f" {'+' if model.offset >= 0 else '−'} {abs(model.offset):.4g}" if fit.offset else ""
    typer.echo(
        f"y(k+1) = {model.a[0]:.4g}·y(k) + {model.b[0]:.4g}·u(k{lag}){offset}    ({fit.align}-row alignment)\n"
    )
    values = {"a": model.a[0], "b": model.b[0], "c": model.offset}
    level = f"{100 * fit.confidence_level:g} %"
    typer.echo(
        table(
            [(name, values[name], low, high) for name, (low, high) in fit.confidence.items()],
            header=("", "estimate", f"{level} from", "to"),
        )
    )
    low, high = fit.linear_range
    typer.echo("")
    rows: list[tuple[str, object]] = [
        ("delay (samples)", _delay_text(fit)),
        ("steady-state gain", model.gain),
        ("linear for inputs", f"{low:g} to {high:g}"),
        ("rows used", f"{fit.score.samples} of {recorded}"),
        ("R², one step ahead", fit.r2),
        ("R², free run", fit.r2_free_run),
        ("RMSE", fit.rmse),
        ("residuals white", fit.residuals_white),
        ("method", fit.method),
        ("--covariance for design, verify", ",".join(f"{value:.4g}" for value in _covariance(fit))),
    ]
    if tested is not None:
        rows += [
            ("test: R², one step ahead", tested.r2),
            ("test: R², free run", tested.r2_free_run),
            ("test: RMSE", tested.rmse),
            ("test: rows used", tested.samples),
        ]
    typer.echo(table(rows))
    for warning in fit.warnings:
        note(f"warning: {warning}")


def draw(fit: Fit, u: npt.ArrayLike, y: npt.ArrayLike, names: tuple[str, str], path: Path) -> None:
    """Draw measurement and prediction over time, and below output over input with the linear range."""
    import numpy as np

    from flyball.cli.plot import FREE_RUN, MEASURED, ONE_STEP, SHADE, new_figure, save_figure
    from flyball.control.identification.identify import predict

    recorded = np.asarray(u, dtype=float).size
    inputs, outputs = np.asarray(u, dtype=float)[:_MAX_POINTS], np.asarray(y, dtype=float)[:_MAX_POINTS]
    early = slice(0, _MAX_TIME)
    rows, one_step, free = predict(fit, inputs[early], outputs[early])
    figure, (over_time, over_input) = new_figure(2)
    over_time.plot(outputs[early], ".", color=MEASURED, markersize=4, label="measured")
    over_time.plot(rows, one_step, color=ONE_STEP, linewidth=1.2, label=f"one step ahead, R² {fit.r2:.3f}")
    over_time.plot(rows, free, color=FREE_RUN, linewidth=1.2, label=f"free run, R² {fit.r2_free_run:.3f}")
    spread = max(float(np.ptp(outputs)), 1e-300)
    over_time.set_ylim(float(outputs.min()) - 0.15 * spread, float(outputs.max()) + 0.15 * spread)
    over_time.set_xlabel("sample" if recorded <= _MAX_TIME else f"sample (the first {_MAX_TIME} of {recorded})")
    over_time.set_ylabel(names[1])
    over_time.legend(fontsize=8)
    model, (low, high) = fit.model, fit.linear_range
    over_input.axvspan(low, high, color=SHADE, alpha=0.12, label=f"linear range {low:g} to {high:g}")
    lag = model.delay + (fit.align == "next")
    over_input.plot(
        inputs[: inputs.size - lag], outputs[lag:], ".", color=MEASURED, markersize=4, label="measured"
    )
    if model.is_stable:
        ends = np.array([low, high])
        steady = model.gain * ends + model.offset / (1.0 - sum(model.a))
        over_input.plot(ends, steady, color=FREE_RUN, linewidth=1.2, label=f"steady state, gain {model.gain:.4g}")
    over_input.set_xlabel(names[0])
    over_input.set_ylabel(names[1])
    over_input.legend(fontsize=8)
    save_figure(figure, path)
