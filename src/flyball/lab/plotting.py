"""Pictures with one look: SVG or PNG by the file's ending. Needs matplotlib (the extra `lab`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flyball.errors import InvalidValue, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDINGS = (".svg", ".png")

# Colours that stay apart for colour-blind readers and in print.
MEASURED, ONE_STEP, FREE_RUN, SHADE = "#555555", "#0072b2", "#d55e00", "#009e73"


def check_plot_path(path: Path | None) -> None:
    """Refuse a picture that could not be saved before any work is done for it."""
    if path is None:
        return
    if path.suffix.lower() not in _ENDINGS:
        raise InvalidValue(f"a picture is saved as .svg or .png, got {str(path)!r}; change the file's ending")
    if not path.parent.is_dir():
        raise InvalidValue(f"there is no folder {str(path.parent)!r} to save the picture in; create it first")
    if path.is_dir():
        raise InvalidValue(f"the picture must be a file, got {str(path)!r}, which is a folder")
    require("matplotlib", "lab")


def new_figure(rows: int = 1, *, width_in: float = 8.0, row_height_in: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure with `rows` axes below each other. No display is needed, and none is opened."""
    figures: Any = require("matplotlib.figure", "lab")
    figure: Figure = figures.Figure(figsize=(width_in, row_height_in * rows), layout="constrained")
    axes: list[Axes] = [figure.add_subplot(rows, 1, i + 1) for i in range(rows)]
    for one in axes:
        one.grid(True, color="#dddddd", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Save as the file's ending says."""
    check_plot_path(path)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InvalidValue(f"the picture {str(path)!r} cannot be saved: {error.strerror or error}") from None
