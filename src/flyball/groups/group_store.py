"""What the members of a group share: their sessions, the coordinator's state, and the lease of its leader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from flyball.groups.codec import decode_report, decode_state, encode_report, encode_state
from flyball.groups.policy.reports import Report, Session
from flyball.groups.policy.state import GroupState
from flyball.store import led_state
from flyball.store.documents import Documents
from flyball.store.leases import Lease
from flyball.store.led_state import LedState
from flyball.store.led_state import candidate_name as candidate_name
from flyball.store.protocol import Database

_SPACE = "groups"

StoredState: TypeAlias = led_state.StoredState[GroupState]


class _Codec:
    def encode_state(self, state: GroupState) -> Any:
        return encode_state(state)

    def decode_state(self, document: Any) -> GroupState:
        return decode_state(document)

    def encode_report(self, report: Report) -> Any:
        return encode_report(report)

    def initial_state(self) -> GroupState:
        return GroupState()


class GroupStore(LedState[GroupState, Report]):
    """The records of one group in a database. Calls wait for the database: make them from a worker thread."""

    def __init__(self, database: Database, group: str) -> None:
        super().__init__(database, _Codec(), space=_SPACE, label="group", key=group)

    def sessions(self) -> list[Session]:
        return [Session(s.member, s.token, s.alive, decode_report(s.value)) for s in self.stored_sessions()]

    def remove(self, sessions: Iterable[Session], lease: Lease) -> None:
        """Remove expired sessions as the leader, so that none of them returns, whatever the clock does."""
        self.remove_sessions([(session.member, session.token) for session in sessions], lease)


def list_groups(database: Database) -> list[tuple[str, GroupState]]:
    """All groups of a database with their states, by name."""
    return [(document.key, decode_state(document.value)) for document in Documents(database, _SPACE).all()]
