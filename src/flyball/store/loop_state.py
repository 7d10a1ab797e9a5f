"""The state from which a loop continues after a restart: its controller's state, its last command, its mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flyball.store.protocol import Database


class LoopStates:
    """Loop states by the loop's name; see `protocol.StateStore`.

    A loop saves at every sample and only the last save matters, so a save survives the end of the process at once
    but does not wait for the disk (unless `durable`): after a power loss a loop may continue from a state some
    seconds older, which its first samples correct.
    """

    def __init__(self, database: Database, *, durable: bool = False) -> None:
        self._database = database
        self._durable = durable

    def save(self, loop_name: str, state: Any) -> None:
        self.save_all({loop_name: state})

    def save_all(self, states: Mapping[str, Any]) -> None:
        """Save many loops in one transaction."""
        rows = [(name, json.dumps(state)) for name, state in states.items()]
        self._database.write(
            lambda t: t.executemany(
                "INSERT INTO flyball_loop_state (name, state) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET state = excluded.state",
                rows,
            ),
            durable=self._durable,
        )

    def load(self, loop_name: str) -> Any | None:
        row = self._database.read(
            lambda t: t.execute("SELECT state FROM flyball_loop_state WHERE name = ?", (loop_name,)).fetchone()
        )
        return None if row is None else json.loads(row[0])

    def forget(self, loop_name: str) -> None:
        self._database.write(
            lambda t: t.execute("DELETE FROM flyball_loop_state WHERE name = ?", (loop_name,)),
            durable=self._durable,
        )
