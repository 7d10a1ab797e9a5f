"""What goes wrong in a group, and when: the same faults for every mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

FaultKind: TypeAlias = Literal["down", "paused", "cut off"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`members` are not running, stand still, or reach nobody but their queues, from `start_s` until `end_s`."""

    kind: FaultKind
    members: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Network:
    """Between members and whoever coordinates them: a call takes `delay_s` on average, and may be lost."""

    delay_s: float = 0.01
    loss: float = 0.0
    late: float = 0.0
    late_s: float = 3.0
    """a share of calls takes this much longer"""

    def draw_delay_s(self, rng: np.random.Generator) -> float | None:
        """How long a call takes; None: it is lost."""
        if rng.random() < self.loss:
            return None
        return float(rng.exponential(self.delay_s)) + (self.late_s if rng.random() < self.late else 0.0)


def has_fault(faults: tuple[Fault, ...], kind: FaultKind, member: str, now_s: float) -> bool:
    return any(f.kind == kind and member in f.members and f.start_s <= now_s < f.end_s for f in faults)
