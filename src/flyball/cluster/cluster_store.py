"""What the processes of a cluster share: its configuration, the clients' sessions, and the manager's record."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

from flyball.brokers.core.checks import ChannelSpec
from flyball.cluster.config import ClusterConfig
from flyball.cluster.policy.management import Client
from flyball.cluster.policy.requests import Action, Request
from flyball.cluster.records import (
    ClusterRecord,
    decode_record,
    decode_report,
    encode_record,
    encode_report,
)
from flyball.errors import InvalidValue
from flyball.store import led_state
from flyball.store.documents import ABSENT, Documents, delete_document, read_document
from flyball.store.leases import Lease
from flyball.store.led_state import LedState
from flyball.store.protocol import Conflict, Database, Transaction
from flyball.store.url import open_database

StoredRecord: TypeAlias = led_state.StoredState[ClusterRecord]

_ATTEMPTS = 20
_REQUESTS = 100
"""Requests of operators that may wait at the same time."""


class _Codec:
    def encode_state(self, state: ClusterRecord) -> Any:
        return encode_record(state)

    def decode_state(self, document: Any) -> ClusterRecord:
        return decode_record(document)

    def encode_report(self, report: Client) -> Any:
        return encode_report(report)

    def initial_state(self) -> ClusterRecord:
        return ClusterRecord()


@dataclass(frozen=True, slots=True)
class Setup:
    """What people decide: the configuration, the nodes to be emptied, and channels besides the cluster's queue."""

    config: ClusterConfig
    drains: frozenset[str] = frozenset()
    channels: tuple[ChannelSpec, ...] = ()
    version: int = ABSENT

    def find_channel(self, name: str) -> ChannelSpec | None:
        return next((channel for channel in self.channels if channel.name == name), None)


@dataclass(frozen=True, slots=True)
class ClientSession:
    """A client's session as the store has it."""

    id: str
    token: int
    alive: bool
    client: Client


@dataclass(frozen=True, slots=True)
class StoredRequest:
    request: Request
    version: int


class ClusterStore(LedState[ClusterRecord, Client]):
    """The records of one cluster in a database. Calls wait for the database: make them from a worker thread."""

    def __init__(self, database: Database, name: str) -> None:
        super().__init__(database, _Codec(), space="clusters", label="cluster", key=name)
        self._name = name
        self._setups = Documents(database, "cluster setups")
        self._requests_space = f"cluster requests {name}"
        self._requests = Documents(database, self._requests_space)

    def create(self, config: ClusterConfig) -> None:
        try:
            self._setups.put(self._name, _encode_setup(Setup(config)), expected=ABSENT)
        except Conflict:
            raise InvalidValue(f"there is a cluster {self._name!r} in this store already") from None

    def setup(self, known: Setup | None = None) -> Setup:
        """The newest setup; `known` itself if it still is."""
        if known is not None and self._setups.version(self._name) == known.version:
            return known
        document = self._setups.get(self._name)
        if document is None:
            names = ", ".join(each.key for each in self._setups.all()) or "none"
            raise InvalidValue(f"there is no cluster {self._name!r} in the store: it has {names}")
        return _decode_setup(document.value, document.version)

    def add_channel(self, channel: ChannelSpec) -> Setup:
        """Make a channel known to all; one that is known stays as it is."""

        def add(setup: Setup) -> Setup:
            if setup.find_channel(channel.name) is not None:
                return setup
            return replace(setup, channels=(*setup.channels, channel))

        return self._change_setup(add)

    def remove_channel(self, name: str) -> Setup:
        return self._change_setup(
            lambda setup: replace(setup, channels=tuple(one for one in setup.channels if one.name != name))
        )

    def drain(self, node: str, *, wanted: bool = True) -> Setup:
        """Ask for a node to be emptied (or no longer)."""

        def change(setup: Setup) -> Setup:
            nodes = self.read().state.state.nodes or setup.config.nodes
            if node not in nodes:
                known = ", ".join(nodes)
                raise InvalidValue(f"there is no node {node!r} in cluster {self._name!r}: it has {known}")
            drains = (setup.drains & set(nodes)) | {node} if wanted else setup.drains - {node}
            if drains >= set(nodes):
                raise InvalidValue(f"node {node!r} cannot be emptied: cluster {self._name!r} would have no other")
            return replace(setup, drains=drains)

        return self._change_setup(change)

    def configure(self, **options: Any) -> Setup:
        """Change keys of the configuration; its manager notices in a heartbeat."""
        return self._change_setup(
            lambda setup: replace(setup, config=ClusterConfig(**{**setup.config.model_dump(), **options}))
        )

    def delete(self) -> None:
        """Forget the cluster; what is at its nodes stays there."""
        leader = self.leader()
        if leader is not None:
            raise InvalidValue(
                f"cluster {self._name!r} is managed by {leader}: end the programs that use it first"
            )
        for request in self.requests():
            self._requests.delete(request.id)
        self._documents.delete(self._key)
        self._setups.delete(self._name)

    def ask(self, action: Action, subject: str) -> StoredRequest:
        """Ask the manager for something; its answer will be in its record."""
        if len(self._requests.all()) >= _REQUESTS:
            raise InvalidValue(f"cluster {self._name!r} has {_REQUESTS} requests that nobody answered")
        request = Request(secrets.token_hex(8), action, subject)
        document = self._requests.put(request.id, asdict(request), expected=ABSENT)
        return StoredRequest(request, document.version)

    def withdraw(self, stored: StoredRequest) -> bool:
        """Take a request back; False: it has been answered."""
        try:
            self._requests.delete(stored.request.id, expected=stored.version)
        except Conflict:
            return False
        return True

    def requests(self) -> tuple[Request, ...]:
        """What waits for an answer, oldest first."""
        waiting = sorted(self._requests.all(), key=lambda document: document.version)
        return tuple(Request(**document.value) for document in waiting)

    def write_answered(
        self, record: ClusterRecord, replaced: StoredRecord, lease: Lease, requests: Iterable[Request]
    ) -> StoredRecord:
        """Write as the leader, and remove the requests that the record answers: both, or neither. Raises
        `Conflict` if one was withdrawn."""
        ids = [request.id for request in requests]
        if not ids:
            return self.write(record, replaced, lease)
        return self._write(record, replaced, lease, lambda transaction: self._remove_requests(transaction, ids))

    def _remove_requests(self, transaction: Transaction, ids: list[str]) -> None:
        for id in ids:
            if read_document(transaction, self._requests_space, id) is None:
                raise Conflict(f"request {id} was withdrawn")
            delete_document(transaction, self._requests_space, id)

    def sessions(self) -> list[ClientSession]:
        return [ClientSession(s.member, s.token, s.alive, decode_report(s.value)) for s in self.stored_sessions()]

    def _change_setup(self, change: Any) -> Setup:
        for attempt in range(_ATTEMPTS):
            before = self.setup()
            after: Setup = change(before)
            if after == before:
                return before
            try:
                document = self._setups.put(self._name, _encode_setup(after), expected=before.version)
            except Conflict:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue
            return replace(after, version=document.version)
        raise AssertionError("the last attempt raises")


def create_cluster(store_url: str, config: ClusterConfig) -> None:
    """Make a cluster known in a store, which is created if it does not exist; its nodes are not asked."""
    with closing(open_database(store_url)) as database:
        ClusterStore(database, config.name).create(config)


def list_clusters(database: Database) -> list[Setup]:
    """All clusters of a database, by name."""
    return [
        _decode_setup(document.value, document.version) for document in Documents(database, "cluster setups").all()
    ]


def _encode_setup(setup: Setup) -> dict[str, Any]:
    return {
        "config": setup.config.model_dump(),
        "drains": sorted(setup.drains),
        "channels": [asdict(channel) for channel in setup.channels],
    }


def _decode_setup(document: Any, version: int) -> Setup:
    return Setup(
        ClusterConfig(**document["config"]),
        frozenset(document["drains"]),
        tuple(ChannelSpec(**channel) for channel in document["channels"]),
        version,
    )
