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
from flyball.futures import wait_at_most
from flyball.histogram import Histogram

LIVE_EVERY_S = 1.0


class Stop:
    """Becomes true with the first SIGINT or SIGTERM, or when the time is over; what is in flight is finished.

    A second signal has its usual effect, in case a broker does not answer.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._signal: signal.Signals | None = None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signal = number
        self._event.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            self._loop.remove_signal_handler(each)

    def after(self, seconds: float | None) -> None:
        """Also become true after this time."""
        if seconds is not None:
            self._loop.call_later(seconds, self._event.set)

    def __bool__(self) -> bool:
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """The usual exit code of a program ended by a signal; 0 without a signal."""
        return 0 if self._signal is None else 128 + self._signal

    async def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or a signal comes."""
        try:
            await wait_at_most(self._event.wait(), seconds)
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
    """Counts messages, bytes and latencies, and prints the rate while running."""

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
        """Print the rate of the last second to standard error until cancelled."""
        if self._quiet:
            return
        over = "\r\x1b[K" if sys.stderr.isatty() else ""
        started, last_messages, last_at = time.monotonic(), 0, time.monotonic()
        try:
            while True:
                await asyncio.sleep(LIVE_EVERY_S)
                now = time.monotonic()
                rate = (self.messages - last_messages) / (now - last_at)
                last_messages, last_at = self.messages, now
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
        quantiles = {"p50": latency.quantile(0.5), "p95": latency.quantile(0.95), "p99": latency.quantile(0.99)}
        named = {**quantiles, "max": latency.largest, "mean": latency.mean}
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
    """Format the figures as a table; nested names get the outer name before them."""
    rows: list[tuple[str, object]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows += [(f"{name} {inner}", number) for inner, number in value.items()]
        else:
            rows.append((name, value))
    return table([(name.replace("_", " "), _grouped(value)) for name, value in rows])


def _grouped(value: object) -> object:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else value
