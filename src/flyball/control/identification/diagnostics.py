"""Reasons to distrust a fitted model, in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flyball.control.identification.least_squares import Solution
from flyball.control.identification.residuals import Score, Whiteness
from flyball.control.models import Array, Arx


def doubts_about(
    model: Arx,
    quality: Score,
    white: Whiteness,
    confidence: Mapping[str, tuple[float, float]],
    solution: Solution,
    drive: Array,
) -> list[str]:
    """Reasons to distrust a fit, in words."""
    doubts: list[str] = []
    moves = int(np.count_nonzero(np.diff(drive)))
    if moves < 2 * solution.coefficients.size:
        doubts.append(f"the input moved only {moves} times: record an experiment with more changes")
    if not np.isfinite(solution.condition):
        doubts.append("past output and input move together so closely that a and b cannot be distinguished")
    insignificant = {
        name: f"{low:.4g} to {high:.4g}" for name, (low, high) in confidence.items() if low <= 0.0 <= high
    }
    if all(name in insignificant for name in confidence if name.startswith("b")):
        named = ", ".join(f"{name}: {text}" for name, text in insignificant.items() if name.startswith("b"))
        doubts.append(f"the input has no significant effect on the output ({named})")
    if all(name in insignificant for name in confidence if name.startswith("a")):
        named = ", ".join(f"{name}: {text}" for name, text in insignificant.items() if name.startswith("a"))
        doubts.append(f"no significant memory ({named}): the output follows the input within one sample")
    if not model.is_stable:
        doubts.append("the model is unstable or integrating: its free run does not settle")
    if not white.white:
        doubts.append(
            f"the residuals are not white (p = {white.p_value:.2g}): something is left unexplained, "
            "and the confidence intervals are too narrow"
        )
    if quality.r2 < 0.8:
        doubts.append(f"R² is {quality.r2:.2f}; a model for design should reach 0.8")
    elif quality.r2_free_run < 0.5:
        doubts.append(
            f"the free run explains little (R² {quality.r2_free_run:.2f} against {quality.r2:.2f} one step "
            "ahead): the model mostly repeats the last output"
        )
    return doubts
