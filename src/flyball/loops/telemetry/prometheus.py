"""The last value of every loop in Prometheus' text format (exposition format 0.0.4).

The format is a dozen lines of text, so no client library is needed; the service serves :meth:`text` over HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flyball.control.record import LoopRecord
from flyball.errors import InvalidValue
from flyball.loops.telemetry.sink import Row, rows

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class _LoopTotals:
    """What is known of one loop."""

    last: LoopRecord
    steps: int = 0
    moves: int = 0
    missed: int = 0


_GAUGES: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("flyball_loop_setpoint", "The goal of the loop.", lambda row: row.setpoint),
    ("flyball_loop_measurement", "What the sensor said last.", lambda row: row.measurement),
    ("flyball_loop_applied", "The value of the actuator before the last step.", lambda row: row.applied),
    ("flyball_loop_proposed", "What the controller proposed last.", lambda row: row.proposed),
    ("flyball_loop_saturated", "-1 or 1 where a limit cut the last command.", lambda row: row.saturated),
    ("flyball_loop_frozen", "1 while the loop is frozen.", lambda row: float(row.frozen)),
)
_COUNTERS: tuple[tuple[str, str, Callable[[_LoopTotals], int]], ...] = (
    ("flyball_loop_steps_total", "Steps of the loop.", lambda totals: totals.steps),
    ("flyball_loop_moves_total", "Commands given to the actuator.", lambda totals: totals.moves),
    ("flyball_loop_missed_total", "Samples that were due and did not come.", lambda totals: totals.missed),
)


class PrometheusSink:
    """Counters and last values of at most `max_loops` loops; the loop heard of longest ago is forgotten."""

    waits_for_disk: ClassVar[bool] = False

    def __init__(self, max_loops: int = 20_000) -> None:
        if max_loops < 1:
            raise InvalidValue(f"max_loops must be a number of loops >= 1, got {max_loops}")
        self._max_loops = max_loops
        self._totals: dict[str, _LoopTotals] = {}
        self.dropped = 0

    def write(self, records: Sequence[LoopRecord]) -> None:
        for record in records:
            # Removed and inserted again, so that the first key is the loop with the oldest record.
            totals = self._totals.pop(record.loop, None) or _LoopTotals(record)
            totals.last = record
            totals.steps += 1
            totals.moves += record.command is not None
            totals.missed += record.missed
            self._totals[record.loop] = totals
            if len(self._totals) > self._max_loops:
                del self._totals[next(iter(self._totals))]
                self.dropped += 1

    def text(self) -> str:
        """Everything, as a scrape expects it."""
        return "\n".join(self._lines()) + "\n"

    def flush(self) -> None:
        """Nothing to do: there is no buffer."""

    def _lines(self) -> Iterator[str]:
        totals = sorted(self._totals.items())
        for name, text, gauge in _GAUGES:
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} gauge"
            for loop, loop_totals in totals:
                for row in rows(loop_totals.last):
                    value = gauge(row)
                    if value is not None:
                        yield f'{name}{{loop="{_escaped(loop)}",axis="{row.axis}"}} {_number(value)}'
        for name, text, counter in _COUNTERS:
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} counter"
            for loop, loop_totals in totals:
                yield f'{name}{{loop="{_escaped(loop)}"}} {counter(loop_totals)}'
        yield "# HELP flyball_loops_forgotten_total Loops left out because there were too many."
        yield "# TYPE flyball_loops_forgotten_total counter"
        yield f"flyball_loops_forgotten_total {self.dropped}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
