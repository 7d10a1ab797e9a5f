"""flyball assign: which member of a group reads which queue, for a file of cases."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from flyball.cli.output import JsonOption, print_json, table
from flyball.errors import InvalidValue


def command(
    cases: Annotated[
        Path, typer.Argument(metavar="CASES.json", help="A JSON list of cases, each with id and strategy.")
    ],
    json: JsonOption = False,
) -> None:
    """Assign queues to the members of a group, and show what changes.

    Strategies: sticky (balance, then racks, then as little movement as possible), load (by the weights of queues),
    averagely, averagely-by-circle, consistent-hash, by-config, by-machine-room, machine-room-nearby.
    """
    from flyball.groups.cases import solve_cases

    results = solve_cases(_read(cases))
    if json:
        print_json(results)
        return
    for name, result in results.items():
        text = f"{name}: {result['error']}" if "error" in result else _readable(name, result)
        # Half a character, which JSON can hold, cannot be printed.
        typer.echo(text.encode(errors="backslashreplace").decode())


def _read(path: Path) -> Any:
    try:
        return json_module.loads(path.read_bytes())
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read ({error.strerror}): name a JSON file of cases") from None
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path} is not JSON: {error}") from None


def _readable(name: str, result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    rows = [
        (member, len(queues), len(result["revoke"].get(member, ())), len(result["assign"].get(member, ())))
        for member, queues in result["assignment"].items()
    ]
    fewest = metrics["fewest_moves"]
    figures = (
        f"balance degree {metrics['balance_degree']:.3g}, stickiness {metrics['stickiness']:.3g}, "
        f"moves {metrics['moves']}{'' if fewest is None else f' (fewest possible {fewest})'}, "
    )
    if "largest_utilisation" in metrics:
        figures += f"largest utilisation {metrics['largest_utilisation']:.3g}, "
    figures += f"{metrics['time_ms']:.3g} ms"
    return f"{name}: {figures}\n" + table(rows, header=("member", "queues", "revoke", "assign"))
