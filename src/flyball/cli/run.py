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
    from flyball.demo.consumer import ConsumerSummary
    from flyball.demo.group import GroupSummary

LOST = 1
"""Exit code of a run that lost events."""


def command(
    config: Annotated[Path, typer.Argument(help="Config file of the run (TOML).")],
    json: JsonOption = False,
) -> None:
    """Run a pipeline from a config file until its input ends or a signal comes; run it again to continue."""
    from flyball.app.config import RunConfig
    from flyball.app.run import run
    from flyball.loops.config import load_toml

    run_config = load_toml(config, RunConfig)
    outcome = asyncio.run(run(run_config, config.parent / run_config.folder, note))
    show(outcome, json=json)
    if not outcome.finished:
        note(f"not finished; `flyball run {config}` continues here")
    refuse_loss(outcome)


def refuse_loss(outcome: Outcome) -> None:
    """End with exit code 1 if an event that was read is in none of the lines of the final count."""
    lost = outcome.audit.lost
    if lost > 0:
        note(
            f"{lost} of {outcome.audit.events_in} events were lost: they were read, and are neither a result, nor "
            "filtered, nor a dead letter; compare the logs of this run with its input"
        )
        raise typer.Exit(LOST)


def show(outcome: Outcome, *, json: bool) -> None:
    """Print the final count: every input event is in exactly one of the lines below it."""
    counts = outcome.audit
    if json:
        names = ("events_in", "results", "filtered", "dead_letter", "lost", "duplicated", "alerts")
        document: dict[str, object] = {name: getattr(counts, name) for name in names}
        document |= {"late": counts.late, "disordered": counts.disordered, "waiting": counts.waiting}
        document |= {"loops": outcome.loops, "seconds": round(outcome.seconds, 3)}
        if outcome.publisher is not None:
            document["publisher"] = outcome.publisher
        if outcome.thresholds:
            document["thresholds"] = dict(outcome.thresholds)
        if outcome.consumer is not None:
            document["consumer"] = asdict(outcome.consumer)
        if outcome.group is not None:
            document["group"] = asdict(outcome.group)
        print_json(document)
        return
    rows: list[tuple[str, object]] = [
        ("events in", counts.events_in),
        ("= results", counts.results),
        *([("  of them late", counts.late)] if counts.late else []),
        ("+ filtered", counts.filtered),
        ("+ dead-letter", counts.dead_letter),
        *([("+ waiting", counts.waiting)] if counts.waiting else []),
        ("lost", counts.lost),
        ("duplicated", counts.duplicated),
        ("alerts", counts.alerts),
        ("seconds", round(outcome.seconds, 1)),
        *_publisher_rows(outcome.publisher),
        *((f"threshold {name}", round(value, 3)) for name, value in outcome.thresholds.items()),
        *_consumer_rows(outcome.consumer),
        *_group_rows(outcome.group),
    ]
    typer.echo(table(rows))


def _publisher_rows(publisher: dict[str, Any] | None) -> list[tuple[str, object]]:
    """Window and measurements of the publisher's loop."""
    if publisher is None or "knee" not in publisher:
        return []
    batches, trip_ms = publisher["batches"], 1000 * publisher["round_trip_s"]
    sent = f"{batches:,} batches, {publisher['confirmed'] / max(1, batches):.1f} events each"
    knee = f"knee {publisher['knee']:.0f} = {publisher['rate']:,.0f}/s x {trip_ms:.2f} ms"
    return [("publisher", f"{sent}; window {publisher['window']:.0f}; {knee}")]


def _consumer_rows(consumer: ConsumerSummary | None) -> list[tuple[str, object]]:
    if consumer is None:
        return []
    return [
        ("consumer: handled", consumer.handled),
        *(
            (
                f"  goal {phase.goal_per_s:g}/s",
                "not settled before the end"
                if phase.mean_per_s is None
                else f"{phase.mean_per_s:g} ± {phase.std_per_s:g}/s, window {phase.window:g} "
                f"(settled after {phase.settled_after} samples)",
            )
            for phase in consumer.phases
        ),
    ]


def _group_rows(group: GroupSummary | None) -> list[tuple[str, object]]:
    if group is None:
        return []
    books = f"{group.sent} sent, {group.lost} lost, {group.repeated} repeated, {group.disordered} out of order"
    return [("group", f"{books}; {group.moves} queues moved (fewest possible {group.fewest_moves})")]
