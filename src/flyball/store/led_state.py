"""What processes that follow a leader share: their sessions with reports, the leader's state, and its lease.

The members of a group and the clients of a cluster are such processes. Calls wait for the database: make them from
a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from flyball.store.documents import ABSENT, Documents
from flyball.store.leases import Lease, Leases
from flyball.store.protocol import Database, Transaction
from flyball.store.sessions import Renewal, Sessions, StoredSession

State = TypeVar("State")
Report = TypeVar("Report")
Report_contra = TypeVar("Report_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class StoredState(Generic[State]):
    """The leader's state as of a version of its document; 0: there is none yet."""

    state: State
    version: int


class Codec(Protocol[State, Report_contra]):
    """Values as JSON documents, and back."""

    def encode_state(self, state: State) -> Any: ...

    def decode_state(self, document: Any) -> State: ...

    def encode_report(self, report: Report_contra) -> Any: ...

    def initial_state(self) -> State: ...


class LedState(Generic[State, Report]):
    """The records of one group or cluster, `key`, among the documents of `space`; `label` names its lease."""

    def __init__(
        self, database: Database, codec: Codec[State, Report], *, space: str, label: str, key: str
    ) -> None:
        self._database, self._codec, self._key = database, codec, key
        self._lease_name = f"{label} {key}"
        self._documents = Documents(database, space)
        self._sessions = Sessions(database, self._lease_name)
        self._leases = Leases(database)

    def now_s(self) -> float:
        """The clock that all processes share."""
        return self._database.time().seconds

    def begin(self, member: str, report: Report, ttl_s: float) -> int:
        return self._sessions.begin(member, self._codec.encode_report(report), ttl_s=ttl_s)

    def renew(self, member: str, token: int, report: Report, ttl_s: float) -> Renewal:
        return self._sessions.renew(member, token, self._codec.encode_report(report), ttl_s=ttl_s)

    def end(self, member: str, token: int) -> None:
        self._sessions.end(member, token)

    def stored_sessions(self) -> list[StoredSession]:
        return self._sessions.all()

    def read(self, known: StoredState[State] | None = None) -> StoredState[State]:
        """The newest state; `known` itself if it still is."""
        if known is not None and self._documents.version(self._key) == known.version:
            return known
        document = self._documents.get(self._key)
        if document is None:
            return StoredState(self._codec.initial_state(), ABSENT)
        return StoredState(self._codec.decode_state(document.value), document.version)

    def write(self, state: State, replaced: StoredState[State], lease: Lease) -> StoredState[State]:
        """Write as the leader; raises `Fenced` or `Conflict` if another leader came between."""
        return self._write(state, replaced, lease)

    def _write(
        self,
        state: State,
        replaced: StoredState[State],
        lease: Lease,
        also: Callable[[Transaction], None] | None = None,
    ) -> StoredState[State]:
        """Write, and do `also` in the same transaction."""
        value = self._codec.encode_state(state)
        document = self._documents.put(self._key, value, expected=replaced.version, lease=lease, also=also)
        return StoredState(state, document.version)

    def remove_sessions(self, expired: Iterable[tuple[str, int]], lease: Lease) -> None:
        """Remove expired sessions as the leader, so that none of them returns, whatever the clock does."""
        sessions = list(expired)
        if not sessions:
            return
        self._leases.guarded(lease, lambda transaction: self._sessions.remove(transaction, sessions))
        for member, token in sessions:
            self._leases.withdraw(self._lease_name, candidate_name(member, token))

    def campaign(self, candidate: str, ttl_s: float) -> Lease | None:
        return self._leases.campaign(self._lease_name, candidate, ttl_s=ttl_s)

    def resign(self, lease: Lease | None, candidate: str) -> None:
        """Give the lease back, if it is ours, and stop being a candidate."""
        if lease is None:
            self._leases.withdraw(self._lease_name, candidate)
        else:
            self._leases.release(lease)

    def leader(self) -> str | None:
        """The member that leads."""
        lease = self._leases.holder(self._lease_name)
        return None if lease is None else lease.holder.rpartition("#")[0]


def candidate_name(member: str, token: int) -> str:
    """One for each session: two processes with the same member id must not share a lease."""
    return f"{member}#{token}"
