"""Faults and hostile messages, at all adapters: what is lost, stuck or wrongly confirmed. Every figure must be 0.

A run is one fault (frozen, killed, restarted, cut, stalled, slow, full, locked …) at one adapter, while a
publisher, a synchronous one, one with two targets, an HTTP listener and a consumer work there; its seed says how
long it lasts and how they work. *Stuck* is who has not gone on 10 s after the fault is over; a *false confirm* is
for a message that the queue, or the group that is subscribed beside it, never got. Hostile messages are sent in
every way, and written by foreign programs with the broker's own client; each has a good neighbour.

Each line names the seed. One run again: `flyball bench brokers --only faults --seed N` begins with the same ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack

from flyball.errors import FlyballError
from flyball.lab.bench import BenchContext, Row
from flyball.testing.fault_runs import FACES, Face, run_fault
from flyball.testing.faults import (
    Fault,
    FaultSite,
    kafka_site,
    memory_site,
    rabbitmq_site,
    sqlite_site,
    start_own_rabbitmq,
    stream_site,
)
from flyball.testing.hostile_runs import FOREIGN_SITES, WAYS, HostileReport, receive_hostile, send_hostile

_RUNS, _QUICK_RUNS = 500, 15
_HOSTILE, _QUICK_HOSTILE = 20_000, 2_000
_PATIENCE_S = 10.0


def cases(context: BenchContext) -> Iterator[Row]:
    with ExitStack() as stack:
        sites = _open(context, stack)
        yield from _fault_rows(context, sites)
        yield from _hostile_rows(context, sites)


def _open(context: BenchContext, stack: ExitStack) -> list[FaultSite]:
    sites = [
        stack.enter_context(memory_site()),
        stack.enter_context(sqlite_site(context.workdir / "disk")),
    ]
    for version, name in ((None, "rabbitmq"), (4, "rabbitmq_4")):
        try:
            node = stack.enter_context(start_own_rabbitmq(version))
        except FlyballError as reason:
            context.note(f"{name} left out: {reason}")
            continue
        sites.append(stack.enter_context(rabbitmq_site(node, name)))
        sites.append(stack.enter_context(stream_site(node, f"{name}_stream")))
    try:
        sites.append(stack.enter_context(kafka_site()))
    except FlyballError as reason:
        context.note(f"kafka left out: {reason}")
    return sites


def _fault_rows(context: BenchContext, sites: list[FaultSite]) -> Iterator[Row]:
    pairs = [(site, fault) for site in sites for fault in site.faults]
    random.Random(context.seed).shuffle(pairs)
    runs = _QUICK_RUNS if context.quick else max(_RUNS, len(pairs))
    lost = stuck = false_confirms = broken = accepted = 0
    for number, (site, fault) in zip(range(runs), itertools.cycle(pairs)):
        seed = context.seed * 1000 + number
        report = run_fault(
            site, fault, seed=seed, folder=context.workdir, faces=_faces(site, fault), patience_s=_PATIENCE_S
        )
        context.note(f"  {number + 1}/{runs} {report}")
        lost, stuck = lost + len(report.lost), stuck + len(report.stuck)
        false_confirms, broken = false_confirms + len(report.false_confirms), broken + len(report.problems)
        accepted += report.accepted
    context.note(f"  {runs} faults, {accepted} messages accepted")
    yield context.row("faults lost", lost, "messages", goal=0.0)
    yield context.row("faults stuck", stuck, "programs", goal=0.0)
    yield context.row("faults false confirms", false_confirms, "messages", goal=0.0)
    yield context.row("faults other problems", broken, "problems", goal=0.0)


def _faces(site: FaultSite, fault: Fault) -> tuple[Face, ...]:
    """A consumer that may no longer read ends, with an error that says so."""
    return tuple(face for face in FACES if not (face == "consumer" and fault == "permission" and site.proxies))


def _hostile_rows(context: BenchContext, sites: list[FaultSite]) -> Iterator[Row]:
    sendings = [(site, way) for site in sites for way in WAYS]
    foreign = [site for site in sites if site.name in FOREIGN_SITES]
    count = -(-(_QUICK_HOSTILE if context.quick else _HOSTILE) // (len(sendings) + len(foreign)))
    reports: list[HostileReport] = []
    for number, (site, way) in enumerate(sendings):
        seed = context.seed * 1000 + number
        reports.append(send_hostile(site, way, seed=seed, count=count, folder=context.workdir))
        context.note(f"  {reports[-1]}")
    for number, site in enumerate(foreign):
        reports.append(receive_hostile(site, seed=context.seed * 1000 + number, count=count))
        context.note(f"  {reports[-1]}")
    context.note(f"  {sum(report.messages for report in reports)} hostile messages")
    lost = sum(len(report.lost_neighbours) for report in reports)
    yield context.row("hostile lost neighbours", lost, "messages", goal=0.0)
    yield context.row("hostile exceptions", sum(len(report.exceptions) for report in reports), "errors", goal=0.0)
    yield context.row("hostile reconnects", sum(report.reconnects for report in reports), "connections", goal=0.0)
