"""Flyball: feedback control for message queues and Spark streams.

Every knob on a message's way is set by a loop: sensor → controller → actuator. The packages below are the
rooms of the house, in the order in which a message passes them::

    publisher ─▶ brokers ─▶ consumer
                    │
                    └─────▶ pipeline (Spark) ─▶ alerts

    control   pure mathematics: models, identification, design, verification, controllers
    loops     runs controllers on a clock;  twin runs them in virtual time
    store     state that must survive;      servers starts real brokers for tests and trials
    lab       benchmarks and experiments;   cli  the command `flyball`

`docs/architecture.md` says what each room holds and what it may import.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name → module that defines it. Resolved on first use, so that `import flyball` stays instant.
_EXPORTS: dict[str, str] = {
    "Consumer": "flyball.consumer.consumer",
    "Loop": "flyball.loops.loop",
    "Pipeline": "flyball.pipeline.app",
    "Publisher": "flyball.publisher.publisher",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'flyball' has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
