"""Whether generated cases are new at each run (`make explore`) or the same (`make test`)."""

from __future__ import annotations

import os

import numpy as np

NEW_CASES = os.environ.get("FLYBALL_NEW_CASES") == "1"


def case_seed() -> int:
    """For tests that generate cases themselves; a failure must show it."""
    return int(np.random.default_rng().integers(10**6)) if NEW_CASES else 1
