"""flyball simulate: simulate a controller on a model of the plant before it acts on a real one."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.certificate import numbers
from flyball.cli.output import JsonOption, note, print_json, table
from flyball.cli.plot import PlotOption, check_plot_path
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.control.models import Arx
    from flyball.control.step import Controller
    from flyball.twin.closed_loop import Run


_MOST_SAMPLES = 1_000_000  # half a minute


def command(
    a: Annotated[
        str, typer.Option("--a", help="Coefficient of y(k); several, separated by commas, for a higher order.")
    ],
    b: Annotated[
        str, typer.Option("--b", help="Coefficient of u(k−delay); several, separated by commas, for more inputs.")
    ],
    goal: Annotated[float, typer.Option(help="Set point of the output.")],
    controller: Annotated[str, typer.Option(help="Name of the controller; see `flyball controllers`.")] = "pi",
    kp: Annotated[float | None, typer.Option(help="Proportional gain.")] = None,
    ki: Annotated[float | None, typer.Option(help="Integral gain.")] = None,
    kd: Annotated[float | None, typer.Option(help="Derivative gain.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set another parameter; may be repeated."),
    ] = None,
    delay: Annotated[int, typer.Option(help="Input delay of the plant in samples.")] = 0,
    offset: Annotated[float, typer.Option(help="Offset c of the plant.")] = 0.0,
    samples: Annotated[int, typer.Option(max=_MOST_SAMPLES, help="Length of the run in samples.")] = 100,
    start: Annotated[float | None, typer.Option(help="Initial command (default: the lowest, or 0).")] = None,
    low: Annotated[float | None, typer.Option(help="Lowest command.")] = None,
    high: Annotated[float | None, typer.Option(help="Highest command.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Round commands to whole numbers.")] = False,
    noise: Annotated[float, typer.Option(help="Standard deviation of the process noise.")] = 0.0,
    sensor_noise: Annotated[float, typer.Option(help="Standard deviation of the sensor's noise.")] = 0.0,
    step_disturbance: Annotated[
        float, typer.Option(help="Disturbance added to the plant's equation from --step-at on.")
    ] = 0.0,
    step_at: Annotated[
        int | None, typer.Option(help="Sample at which the disturbance begins (default: the middle).")
    ] = None,
    guard: Annotated[bool, typer.Option("--guard", help="Run the guard of live loops, too.")] = False,
    skip: Annotated[int | None, typer.Option(help="Samples left out of mean and std (default: half).")] = None,
    band: Annotated[
        float, typer.Option(help="Fraction of the goal within which the loop counts as settled.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 1,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate a controller on the plant y(k+1) = a·y(k) + b·u(k−delay) + offset and print a summary.

    The exit code is 0 for an unstable loop, too: that is a result, not an error.
    """
    import numpy as np

    from flyball.control.guard.guard import Guard
    from flyball.control.models import Arx
    from flyball.twin import closed_loop

    check_plot_path(plot)
    limits = _limits(low, high)
    if skip is not None and not 0 <= skip < samples - 1:
        raise InvalidValue(f"--skip must be a number of samples from 0 to {samples - 2}, got {skip}")
    if step_at is not None and not 0 <= step_at < samples:
        raise InvalidValue(f"--step-at must be a sample from 0 to {samples - 1}, got {step_at}")
    if not 0 < band < 1:
        raise InvalidValue(f"--band must be a fraction between 0 and 1, got {band}")
    model = Arx(numbers("--a", a), numbers("--b", b), delay, offset)
    configured = _controller(controller, {"kp": kp, "ki": ki, "kd": kd}, settings or [])
    disturbed_from = samples // 2 if step_at is None else step_at
    setup = closed_loop.Setup(
        model=model,
        controller=configured,
        goal=goal,
        samples=samples,
        command=start if start is not None else limits[0] if limits else 0.0,
        limits=limits,
        whole=whole,
        noise=noise,
        sensor_noise=sensor_noise,
        disturbance=closed_loop.step_at(disturbed_from, step_disturbance) if step_disturbance else None,
        guard=Guard() if guard else None,
        seed=seed,
    )
    with np.errstate(all="ignore"):  # an unstable loop grows beyond all numbers
        run = closed_loop.run_closed_loop(setup)
        found = asdict(run.summary(skip=samples // 2 if skip is None else skip, band=band))
    if plot is not None:
        _draw(run, model, repr(configured), plot)
        note(f"picture in {plot}")
    if json:
        arrays = {"measurement": run.measurement, "command": run.command}
        print_json(
            {"controller": repr(configured), "goal": goal, "samples": samples, "seed": seed, **found, **arrays}
        )
        return
    words = {
        "mean": "output, mean",
        "std": "output, standard deviation",
        "rmse": "root mean square error",
        "settling": f"settled within {band:.0%} after (samples)",
        "overshoot": "overshoot, fraction of the step",
        "command_mean": "command, mean",
        "command_std": "command, standard deviation",
        "saturated": "samples at a limit",
        "alert": "guard",
    }
    shown = {**found, "settling": "never" if found["settling"] is None else found["settling"]}
    rows = [(text, shown[key]) for key, text in words.items() if key != "alert" or shown[key]]
    typer.echo(table(rows, header=(repr(configured), f"goal {goal:g}")))


def _limits(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InvalidValue(f"--low and --high must be given together, got low={low}, high={high}")
    return low, high


def _controller(name: str, gains: dict[str, float | None], settings: list[str]) -> Controller[Any]:
    from pydantic import BaseModel

    from flyball.loops.config import ControllerField
    from flyball.loops.toml import check

    class Options(BaseModel):
        controller: ControllerField

    config: dict[str, Any] = {key: value for key, value in gains.items() if value is not None}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidValue(f"--set must be KEY=VALUE, got {setting!r}")
        try:
            config[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            config[key.strip()] = value  # a bare word
    controller: Controller[Any] = check({"controller": {"name": name, **config}}, Options, "options").controller
    return controller


def _draw(run: Run, model: Arx, title: str, path: Any) -> None:
    from flyball.cli.plot import FREE_RUN, MEASURED, ONE_STEP, new_figure, save_figure

    figure, (above, below) = new_figure(rows=2)
    delay = f", delay {model.delay}" if model.delay else ""
    a, b = (", ".join(f"{x:g}" for x in coefficients) for coefficients in (model.a, model.b))
    above.set_title(f"{title} on a = {a}, b = {b}{delay}", fontsize=10)
    above.plot(run.time, run.measurement, color=ONE_STEP, label="output")
    above.plot(run.time, run.goal, color=MEASURED, linestyle="--", label="goal")
    above.set_ylabel("output")
    above.legend(frameon=False)
    below.step(run.time, run.command, where="post", color=FREE_RUN)
    below.set_ylabel("command")
    below.set_xlabel("sample")
    save_figure(figure, path)
