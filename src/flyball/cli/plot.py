"""The option `--plot` that several commands have; `flyball.lab.plotting` draws the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from flyball.lab.plotting import FREE_RUN, MEASURED, ONE_STEP, SHADE, check_plot_path, new_figure, save_figure

__all__ = [
    "FREE_RUN",
    "MEASURED",
    "ONE_STEP",
    "SHADE",
    "PlotOption",
    "check_plot_path",
    "new_figure",
    "save_figure",
]

PlotOption: TypeAlias = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg|png", help="Save a picture to this file.")
]
