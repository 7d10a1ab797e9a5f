"""flyball outbox: dead letters of a publisher's outbox file."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball.cli.output import JsonOption, note, print_json, table

if TYPE_CHECKING:
    from flyball.store.dead_letters import DeadLetter

app = typer.Typer(no_args_is_help=True)

FileArgument = Annotated[str, typer.Argument(help="Outbox file of a publisher.")]
NumbersArgument = Annotated[
    list[int] | None, typer.Argument(help="Numbers of dead letters, as `list` shows them.")
]


@app.command("list")
def list_letters(
    file: FileArgument,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of dead letters to list.")] = 1000,
    json: JsonOption = False,
) -> None:
    """List messages that a target refused after they were accepted, and why."""
    from flyball.store import DeadLetters, Outbox
    from flyball.store.dead_letters import open_outbox_file

    with open_outbox_file(file) as database:
        letters = DeadLetters(database).read_many(limit)
        dead, _ = DeadLetters(database).count()
        waiting, _ = Outbox(database).pending()
    if json:
        print_json({"waiting": waiting, "dead_letters": dead, "listed": [_summary(letter) for letter in letters]})
        return
    if letters:
        rows = [
            (letter.number, letter.message.id, letter.channel, _time(letter.rejected_s), letter.reason)
            for letter in letters
        ]
        typer.echo(table(rows, header=("number", "id", "channel", "rejected", "reason")))
    note(f"{dead} dead letters, {waiting} messages wait in the outbox")


@app.command("show")
def show(
    file: FileArgument,
    number: Annotated[int, typer.Argument(help="Number of a dead letter, as `list` shows it.")],
    json: JsonOption = False,
) -> None:
    """Show one dead letter with its headers and its body."""
    from flyball.store import DeadLetters
    from flyball.store.dead_letters import open_outbox_file

    with open_outbox_file(file) as database:
        letter = DeadLetters(database).read(number)
    document = {**_summary(letter), **_content(letter)}
    if json:
        print_json(document)
    else:
        rows = [(name, _line(name, value)) for name, value in document.items() if value is not None]
        typer.echo(table(rows))


@app.command("replay")
def replay(
    file: FileArgument,
    numbers: NumbersArgument = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Replay every dead letter.")] = False,
    json: JsonOption = False,
) -> None:
    """Put dead letters back into the outbox: its publisher sends them again, with the same ids."""
    from flyball.store import DeadLetters
    from flyball.store.dead_letters import open_outbox_file

    selection = _select(numbers, all_letters)
    with open_outbox_file(file) as database:
        count = DeadLetters(database).replay(selection)
    print_json({"replayed": count}) if json else typer.echo(f"{count} messages wait in the outbox again")


@app.command("delete")
def delete(
    file: FileArgument,
    numbers: NumbersArgument = None,
    all_letters: Annotated[bool, typer.Option("--all", help="Delete every dead letter.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete dead letters for good."""
    from flyball.store import DeadLetters
    from flyball.store.dead_letters import open_outbox_file

    selection = _select(numbers, all_letters)
    with open_outbox_file(file) as database:
        count = DeadLetters(database).delete(selection)
    print_json({"deleted": count}) if json else typer.echo(f"{count} dead letters are deleted")


def _select(numbers: list[int] | None, all_letters: bool) -> list[int] | None:
    """Return the numbers, or None for all dead letters."""
    from flyball.errors import InvalidValue

    if bool(numbers) == all_letters:
        raise InvalidValue("name either the numbers of dead letters or --all")
    return numbers or None


def _summary(letter: DeadLetter) -> dict[str, Any]:
    return {
        "number": letter.number,
        "id": letter.message.id,
        "channel": letter.channel,
        "target": letter.target or None,
        "reason": letter.reason,
        "accepted_s": letter.accepted_s,
        "rejected_s": letter.rejected_s,
        "urgency": letter.urgency,
        "size_bytes": len(letter.message.body),
    }


def _content(letter: DeadLetter) -> dict[str, Any]:
    """The message itself; bytes that are no text are given in Base64."""
    message = letter.message
    headers = {
        name: {"base64": _base64(value)} if isinstance(value, bytes) else value
        for name, value in message.headers.items()
    }
    document: dict[str, Any] = {
        "key": None if message.key is None else _text(message.key),
        "headers": headers or None,
        "event_time_s": message.event_time_s,
        "content_type": message.content_type,
    }
    return {**document, "body": _text(message.body)}


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _line(name: str, value: Any) -> Any:
    return _time(value) if name in ("accepted_s", "rejected_s", "event_time_s") else value


def _time(time_s: float) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return f"{time_s:g} s"
