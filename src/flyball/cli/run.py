"""flyball run: source → publisher → broker → Spark → alerts, from a config file."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.output import JsonOption, note, print_json, table

if TYPE_CHECKING:
    from flyball.app.run import Outcome
    from flyball.demo.consumer import Consumed


def command(
    config: Annotated[Path, typer.Argument(help="What to run, in TOML.")],
    json: JsonOption = False,
) -> None:
    """Run a pipeline from a config file until its input ends or a signal comes; run it again to continue."""
    from flyball.app.run import LineConfig, run_line
    from flyball.loops.config import load_toml

    line = load_toml(config, LineConfig)
    outcome = asyncio.run(run_line(line, config.parent / line.folder))
    show(outcome, json=json)
    if not outcome.finished:
        note(f"not finished; `flyball run {config}` continues here")


def show(outcome: Outcome, *, json: bool) -> None:
    """The final count: every event that came in is in one of the lines below it."""
    found = outcome.audit
    if json:
        names = ("events_in", "results", "filtered", "dead_letter", "lost", "duplicated", "alerts")
        document: dict[str, object] = {name: getattr(found, name) for name in names}
        document |= {"late": found.late, "disordered": found.disordered, "waiting": found.waiting}
        document |= {"loops": outcome.loops, "seconds": round(outcome.seconds, 3)}
        if outcome.publisher is not None:
            document["publisher"] = outcome.publisher
        if outcome.thresholds:
            document["thresholds"] = dict(outcome.thresholds)
        if outcome.consumed is not None:
            document["consumer"] = asdict(outcome.consumed)
        print_json(document)
        return
    rows: list[tuple[str, object]] = [
        ("events in", found.events_in),
        ("= results", found.results),
        *([("  of them late", found.late)] if found.late else []),
        ("+ filtered", found.filtered),
        ("+ dead-letter", found.dead_letter),
        *([("+ waiting", found.waiting)] if found.waiting else []),
        ("lost", found.lost),
        ("duplicated", found.duplicated),
        ("alerts", found.alerts),
        ("seconds", round(outcome.seconds, 1)),
        *_publisher_rows(outcome.publisher),
        *((f"threshold {name}", round(value, 3)) for name, value in outcome.thresholds.items()),
        *_consumer_rows(outcome.consumed),
    ]
    typer.echo(table(rows))


def _publisher_rows(publisher: dict[str, Any] | None) -> list[tuple[str, object]]:
    """What the publisher's loop set and what it had measured."""
    if publisher is None or "knee" not in publisher:
        return []
    batches, trip_ms = publisher["batches"], 1000 * publisher["round_trip_s"]
    sent = f"{batches:,} batches, {publisher['confirmed'] / max(1, batches):.1f} events each"
    knee = f"knee {publisher['knee']:.0f} = {publisher['rate']:,.0f}/s x {trip_ms:.2f} ms"
    return [("publisher", f"{sent}; window {publisher['window']:.0f}; {knee}")]


def _consumer_rows(consumed: Consumed | None) -> list[tuple[str, object]]:
    if consumed is None:
        return []
    return [
        ("consumer: handled", consumed.handled),
        *(
            (
                f"  goal {phase.goal_per_s:g}/s",
                "too short to say"
                if phase.mean_per_s is None
                else f"{phase.mean_per_s:g} ± {phase.std_per_s:g}/s, window {phase.window:g}",
            )
            for phase in consumed.phases
        ),
    ]
