"""flyball groups: who reads which queue, and what would change; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.output import JsonOption, note, print_json, table
from flyball.errors import InvalidValue

if TYPE_CHECKING:
    from flyball.groups.group_store import GroupStore
    from flyball.groups.policy.group import Queue
    from flyball.groups.policy.reports import Report, Session
    from flyball.groups.policy.state import GroupState
    from flyball.store import Database

app = typer.Typer(no_args_is_help=True)

StoreArgument = Annotated[
    str, typer.Argument(help="Store of the groups, sqlite:///groups.db or postgresql://user@host/database.")
]
GroupArgument = Annotated[str, typer.Argument(help="Name of the group, as `list` shows it.")]


@app.command("list")
def list_all(store: StoreArgument, json: JsonOption = False) -> None:
    """List the groups of a store."""
    from flyball.groups.group_store import GroupStore, list_groups

    with _open(store) as database:
        documents = []
        for name, state in list_groups(database):
            records = GroupStore(database, name)
            documents.append(
                {
                    "group": name,
                    "members": len({session.member for session in records.sessions() if session.alive}),
                    "queues": sum(state.topics.values()),
                    "owned": len(state.grants),
                    "leader": records.leader(),
                    "strategy": state.rules.strategy,
                    "plans": len(state.history),
                }
            )
    if json:
        print_json(documents)
    elif documents:
        typer.echo(table([tuple(entry.values()) for entry in documents], header=tuple(documents[0])))
    else:
        note("the store has no groups")


@app.command("show")
def show(
    store: StoreArgument,
    group: GroupArgument,
    queues: Annotated[bool, typer.Option("--queues", help="Print the owner of every queue, too.")] = False,
    json: JsonOption = False,
) -> None:
    """Show members, owners with generations, the leader, and the history of plans."""
    with _open(store) as database:
        records, state = _find(database, group)
        sessions, leader = records.sessions(), records.leader()
    if json:
        print_json(_describe(group, state, sessions, leader))
        return
    typer.echo(
        f"{group}: strategy {state.rules.strategy}, round {state.round}, leader {leader or 'none'}, "
        f"{len(state.grants)} of {sum(state.topics.values())} queues owned, "
        f"{len(state.revocations)} in hand-over"
    )
    members = [
        (s.member, s.report.stage if s.alive else "expired", len(state.granted_to(s.member, s.token)), s.token)
        for s in sessions
    ]
    if members:
        typer.echo("\n" + table(members, header=("member", "session", "queues", "token")))
    if queues:
        owners = [(_name(queue), grant.member, grant.generation) for queue, grant in sorted(state.grants.items())]
        typer.echo("\n" + table(owners, header=("queue", "owner", "generation")))
    if state.history:
        rows = [
            (
                _time(record.time_s),
                record.members,
                record.moves,
                record.fewest_moves,
                record.balance_degree,
                record.stickiness,
                f"{record.clean}/{record.forced}/{record.expired}",
                record.reason,
            )
            for record in state.history
        ]
        header = ("time", "members", "moves", "fewest", "balance", "stickiness", "clean/forced/expired", "reason")
        typer.echo("\n" + table(rows, header=header))


@app.command("what-if")
def what_if(
    store: StoreArgument,
    group: GroupArgument,
    leave: Annotated[list[str] | None, typer.Option(help="A member that leaves; may be repeated.")] = None,
    join: Annotated[
        list[str] | None, typer.Option(help="A member that joins, or MEMBER=TOPIC,TOPIC; may be repeated.")
    ] = None,
    queues: Annotated[
        list[str] | None, typer.Option(help="TOPIC=NUMBER of its queues then; may be repeated.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Another strategy.")] = None,
    json: JsonOption = False,
) -> None:
    """Say what would move if members left or joined or a topic grew; nothing is changed."""
    from flyball.groups.policy.what_if import Changes, foresee

    if not (leave or join or queues or strategy):
        raise InvalidValue("name at least one change: --leave, --join, --queues or --strategy")
    changes = Changes(
        leave or (), dict(map(_parse_join, join or ())), dict(map(_parse_count, queues or ())), strategy
    )
    _check_strategy(strategy)
    with _open(store) as database:
        records, state = _find(database, group)
        outlook = foresee(state, changes, _reports(records.sessions()), records.now_s())
    if json:
        print_json(
            {
                "moves": [
                    {"queue": list(move.queue), "from": move.source, "to": move.target} for move in outlook.moves
                ],
                "assignment": {
                    member: [list(queue) for queue in given] for member, given in outlook.plan.assignment.items()
                },
                "metrics": {
                    "moves": outlook.plan.moves,
                    "fewest_moves": outlook.fewest_moves,
                    "balance_degree": outlook.plan.balance_degree,
                    "stickiness": outlook.plan.stickiness,
                },
            }
        )
        return
    before: dict[str, int] = {}
    for member in state.targets.values():
        before[member] = before.get(member, 0) + 1
    names = sorted({*before, *state.members, *outlook.plan.assignment})
    rows = [(name, before.get(name, 0), len(outlook.plan.assignment.get(name, ()))) for name in names]
    typer.echo(table(rows, header=("member", "queues now", "then")))
    if outlook.moves:
        moves = [(_name(move.queue), move.source, move.target) for move in outlook.moves]
        typer.echo("\n" + table(moves, header=("queue", "from", "to")))
    note(
        f"{len(outlook.moves)} queues change hands, {outlook.plan.moves} of them between members that stay; "
        f"balance degree {outlook.plan.balance_degree:.3g}"
    )


@app.command("advise")
def advise(
    store: StoreArgument,
    group: GroupArgument,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Messages of a queue need not be handled in order.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Say what to change about a group."""
    from flyball.groups.policy.advice import advise as find_advice

    with _open(store) as database:
        records, state = _find(database, group)
        found = find_advice(state, _reports(records.sessions()), ordered=not unordered)
    if json:
        print_json([asdict(advice) for advice in found])
        return
    for advice in found:
        typer.echo(f"{advice.code}: {advice.sentence}")


@contextmanager
def _open(url: str) -> Iterator[Database]:
    from flyball.store.url import open_database

    with closing(open_database(url, create=False)) as database:
        yield database


def _find(database: Database, group: str) -> tuple[GroupStore, GroupState]:
    from flyball.groups.group_store import GroupStore, list_groups

    groups = dict(list_groups(database))
    if group not in groups:
        raise InvalidValue(f"there is no group {group!r} in the store: it has {', '.join(groups) or 'none'}")
    return GroupStore(database, group), groups[group]


def _reports(sessions: list[Session]) -> dict[str, Report]:
    """The newest report of each live member: sessions are listed by token."""
    return {session.member: session.report for session in sessions if session.alive}


def _describe(group: str, state: GroupState, sessions: list[Session], leader: str | None) -> dict[str, Any]:
    return {
        "group": group,
        "round": state.round,
        "leader": leader,
        "strategy": state.rules.strategy,
        "topics": dict(state.topics),
        "members": [
            {
                "member": session.member,
                "token": session.token,
                "alive": session.alive,
                "stage": session.report.stage,
                "rack": session.report.rack,
                "topics": sorted(session.report.topics),
                "owned": _generations(session.report.owned),
                "granted": _generations(state.granted_to(session.member, session.token)),
            }
            for session in sessions
        ],
        "hand_overs": [
            {"queue": list(queue), "from": entry.grant.member, "to": state.targets.get(queue)}
            for queue, entry in sorted(state.revocations.items())
        ],
        "history": [asdict(record) for record in state.history],
    }


def _generations(owned: Mapping[Queue, int]) -> list[dict[str, Any]]:
    return [{"queue": list(queue), "generation": generation} for queue, generation in sorted(owned.items())]


def _parse_join(text: str) -> tuple[str, list[str]]:
    member, given, topics = text.partition("=")
    if not member or (given and not topics):
        raise InvalidValue(f"--join must be MEMBER or MEMBER=TOPIC,TOPIC, got {text!r}")
    return member, [topic for topic in topics.split(",") if topic]


def _parse_count(text: str) -> tuple[str, int]:
    topic, _, count = text.rpartition("=")
    if not topic or not count.isdecimal():
        raise InvalidValue(f"--queues must be TOPIC=NUMBER, got {text!r}")
    return topic, int(count)


def _check_strategy(strategy: str | None) -> None:
    from typing import get_args

    from flyball.groups.config import Strategy

    known = get_args(Strategy)
    if strategy is not None and strategy not in known:
        raise InvalidValue(f"--strategy must be one of {', '.join(known)}, got {strategy!r}")


def _name(queue: Queue) -> str:
    return f"{queue[0]}.{queue[1]}"


def _time(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
