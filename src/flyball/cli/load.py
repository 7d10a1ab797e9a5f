"""What `flyball publish` and `flyball consume` share: stopping, the live line, the figures at the end."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import typer

from flyball.cli.output import note, table
from flyball.histogram import Histogram

LIVE_EVERY_S = 1.0


class Stop:
    """Becomes true with the first SIGINT or SIGTERM, or when the time is over: finish what is under way.

    A second signal has its usual effect, for the case that a broker does not let us finish.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._came, number)

    def _came(self, number: signal.Signals) -> None:
        self._signal = number
        self._event.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(each)

    def after(self, seconds: float | None) -> None:
        """Become true after this time too."""
        if seconds is not None:
            self._loop.call_later(seconds, self._event.set)

    def __bool__(self) -> bool:
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that a signal ended before its work was done; 0 without a signal."""
        return 0 if self._signal is None else 128 + self._signal

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond a signal."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return

    async def until(self, other: asyncio.Event) -> None:
        """Wait for the event or a signal."""
        waits = [asyncio.ensure_future(self._event.wait()), asyncio.ensure_future(other.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class Tally:
    """Counts messages, bytes and latencies, and shows the rate while it goes on."""

    def __init__(self, verb: str, quiet: bool) -> None:
        self.messages = 0
        self.bytes = 0
        self.latency_s = Histogram()
        self.first_s: float | None = None
        self.last_s: float | None = None
        self._verb = verb
        self._quiet = quiet

    def add(self, bodies: int, size_bytes: int) -> None:
        now = time.monotonic()
        self.first_s = now if self.first_s is None else self.first_s
        self.last_s = now
        self.messages += bodies
        self.bytes += size_bytes

    async def live(self, extra: Callable[[], str] = lambda: "") -> None:
        """Write the rate of the last second to standard error, for ever: to be cancelled."""
        if self._quiet:
            return
        over = "\r\x1b[K" if sys.stderr.isatty() else ""
        started, seen, seen_at = time.monotonic(), 0, time.monotonic()
        try:
            while True:
                await asyncio.sleep(LIVE_EVERY_S)
                now = time.monotonic()
                rate = (self.messages - seen) / (now - seen_at)
                seen, seen_at = self.messages, now
                p99 = self.latency_s.quantile(0.99)
                text = f"{now - started:7.1f} s  {self.messages:>12,} {self._verb}  {rate:>10,.0f}/s"
                text += "" if p99 is None else f"  p99 {p99 * 1e3:,.1f} ms"
                typer.echo(over + text + extra(), err=True, nl=not over)
        finally:
            if over:
                note("")

    def figures(self, seconds: float) -> dict[str, Any]:
        """Totals for `--json` and the table."""
        latency = self.latency_s
        of = {"p50": latency.quantile(0.5), "p95": latency.quantile(0.95), "p99": latency.quantile(0.99)}
        named = {**of, "max": latency.largest, "mean": latency.mean}
        return {
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "rate_per_s": round(self.messages / seconds, 1) if seconds > 0 else None,
            "bytes_per_s": round(self.bytes / seconds) if seconds > 0 else None,
            "latency_ms": {
                name: None if value is None else round(value * 1e3, 3) for name, value in named.items()
            },
        }


def figures_table(document: dict[str, Any]) -> str:
    """The same figures for people: nested ones with the outer name before them."""
    rows: list[tuple[str, object]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows += [(f"{name} {inner}", number) for inner, number in value.items()]
        else:
            rows.append((name, value))
    return table([(name.replace("_", " "), _grouped(value)) for name, value in rows])


def _grouped(value: object) -> object:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else value
