"""Faults and hostile messages, at all adapters: what is lost, stuck or wrongly confirmed. Every figure must be 0.

A run is one fault (frozen, killed, restarted, cut, stalled, slow, full, locked …) at one adapter, while a
publisher, a synchronous one, one with two targets, an HTTP listener and a consumer work there; its seed says how
long it lasts and how they work. *Stuck* is who has not gone on 10 s after the fault is over; a *false confirm* is
for a message that the queue, or the group that is subscribed beside it, never got. Hostile messages are sent in
every way, and written by foreign programs with the broker's own client; each has a good neighbour.

Brokers run side by side, each in a process of its own with its programs: a run mostly waits, and one broker's
faults (a stepped clock, a full disk) must not reach the others. Each line names the seed; `--seed N` repeats them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from flyball.errors import FlyballError
from flyball.lab.bench import BenchContext, Row
from flyball.testing.fault_runs import FACES, Face, FaultReport, run_fault
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


Place: TypeAlias = Literal["embedded", "rabbitmq", "rabbitmq_4", "kafka"]


def cases(context: BenchContext) -> Iterator[Row]:
    yield from _fault_rows(context)
    with ExitStack() as stack:
        sites: list[FaultSite] = []
        for place in get_args(Place):
            try:
                sites += _open(place, context.workdir, stack)
            except FlyballError as reason:
                context.note(f"{place} left out: {reason}")
        yield from _hostile_rows(context, sites)


def _open(place: Place, folder: Path, stack: ExitStack) -> list[FaultSite]:
    """The sites that share servers and files."""
    if place == "embedded":
        return [stack.enter_context(memory_site()), stack.enter_context(sqlite_site(folder / "disk"))]
    if place == "kafka":
        return [stack.enter_context(kafka_site())]
    node = stack.enter_context(start_own_rabbitmq(4 if place == "rabbitmq_4" else None))
    return [
        stack.enter_context(rabbitmq_site(node, place)),
        stack.enter_context(stream_site(node, f"{place}_stream")),
    ]


# --- faults -----------------------------------------------------------------------------------------------------


def _fault_rows(context: BenchContext) -> Iterator[Row]:
    reports: list[FaultReport] = []
    runs = _QUICK_RUNS if context.quick else _RUNS
    for report in _run_places(context, runs):
        reports.append(report)
        context.note(f"  {len(reports)}/{runs} {report}")
    context.note(f"  {len(reports)} faults, {sum(report.accepted for report in reports)} messages accepted")
    lost = sum(len(report.lost) for report in reports)
    yield context.row("faults lost", lost, "messages", goal=0.0)
    yield context.row("faults stuck", sum(len(report.stuck) for report in reports), "programs", goal=0.0)
    false_confirms = sum(len(report.false_confirms) for report in reports)
    yield context.row("faults false confirms", false_confirms, "messages", goal=0.0)
    problems = sum(len(report.problems) for report in reports)
    yield context.row("faults other problems", problems, "problems", goal=0.0)


def _run_places(context: BenchContext, runs: int) -> Iterator[FaultReport]:
    """Share the runs among the places in proportion to their faults, and yield what they report."""
    spawn = multiprocessing.get_context("spawn")
    places: dict[Connection, Place] = {}
    processes = []
    for place in get_args(Place):
        ours, theirs = spawn.Pipe()
        folder = context.workdir / place
        folder.mkdir(parents=True, exist_ok=True)
        processes.append(spawn.Process(target=_serve, args=(theirs, place, folder, context.seed)))
        processes[-1].start()
        theirs.close()
        places[ours] = place
    try:
        faults = {connection: _count_faults(context, connection, place) for connection, place in places.items()}
        first, total, left = 0, sum(faults.values()), {connection for connection, count in faults.items() if count}
        for number, connection in enumerate(connection for connection in places if connection in left):
            last = runs if number + 1 == len(left) else first + round(runs * faults[connection] / total)
            connection.send((first, last))
            first = last
        while left:
            for ready in wait(left):
                assert isinstance(ready, Connection)
                try:
                    report = ready.recv()
                except EOFError:
                    left.discard(ready)
                    continue
                yield report
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for connection in places:
            connection.close()
        for process in processes:
            process.join()


def _count_faults(context: BenchContext, connection: Connection, place: Place) -> int:
    answer: int | str = connection.recv()
    if isinstance(answer, str):
        context.note(f"{place} left out: {answer}")
        return 0
    return answer


def _serve(connection: Connection, place: Place, folder: Path, seed: int) -> None:
    """In a process of its own: say how many faults there are, get the numbers of the runs, report each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and file systems are unmounted
    with ExitStack() as stack:
        try:
            sites = _open(place, folder, stack)
        except FlyballError as reason:
            connection.send(str(reason))
            return
        pairs = [(site, fault) for site in sites for fault in site.faults]
        random.Random(f"{place} {seed}").shuffle(pairs)
        connection.send(len(pairs))
        with suppress(EOFError, BrokenPipeError):  # nobody reads any more: the benchmark was interrupted
            for number, (site, fault) in zip(range(*connection.recv()), itertools.cycle(pairs)):
                report = run_fault(
                    site,
                    fault,
                    seed=seed * 1000 + number,
                    folder=folder,
                    faces=_faces(site, fault),
                    patience_s=_PATIENCE_S,
                )
                connection.send(report)


def _faces(site: FaultSite, fault: Fault) -> tuple[Face, ...]:
    """A consumer that may no longer read ends, with an error that says so."""
    return tuple(face for face in FACES if not (face == "consumer" and fault == "permission" and site.proxies))


# --- hostile messages -------------------------------------------------------------------------------------------


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
