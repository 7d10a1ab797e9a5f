"""A fence around effects: what an owner writes ends what earlier owners may still write.

An owner that was paused, and lost its queue to another one meanwhile, does not know it when it continues. No clock
and no check beforehand helps, so the check is part of the transaction that has the effect: it passes unless a
larger generation has written for the same queue. The effect and this check must be in one database.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from flyball.store.protocol import Database, Fenced, Transaction

Result = TypeVar("Result")


class GenerationFence:
    """The generations that have written into a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def apply(
        self, group: str, queue: tuple[str, int], generation: int, work: Callable[[Transaction], Result]
    ) -> Result:
        """Run `work` in one transaction with the check; raises `Fenced` if a later owner has written."""

        def checked(transaction: Transaction) -> Result:
            check_generation(transaction, group, queue, generation)
            return work(transaction)

        return self._database.write(checked)


def check_generation(transaction: Transaction, group: str, queue: tuple[str, int], generation: int) -> None:
    """The check alone, for a transaction of your own on a database that has our tables.

    It remembers `generation`, and raises `Fenced` if a larger one was remembered.
    """
    scope = _scope(group, queue)
    transaction.execute(
        "INSERT INTO flyball_generation (scope, generation) VALUES (?, ?) ON CONFLICT (scope) DO UPDATE "
        "SET generation = excluded.generation WHERE excluded.generation > flyball_generation.generation",
        (scope, generation),
    )
    row = transaction.execute("SELECT generation FROM flyball_generation WHERE scope = ?", (scope,)).fetchone()
    if int(row[0]) > generation:
        topic, number = queue
        raise Fenced(
            f"generation {generation} of queue {topic}.{number} in group {group!r} was followed by {row[0]}; "
            "nothing was written, another member has the queue"
        )


def _scope(group: str, queue: tuple[str, int]) -> Any:
    return json.dumps([group, *queue], ensure_ascii=False)
