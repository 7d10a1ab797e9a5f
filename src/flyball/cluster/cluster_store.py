"""What the processes of a cluster share: its configuration, the clients' sessions, and the manager's record."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from flyball.brokers.core.checks import ChannelSpec
from flyball.cluster.config import ClusterConfig
from flyball.cluster.policy.management import Client
from flyball.cluster.records import (
    ClusterRecord,
    decode_record,
    decode_report,
    encode_record,
    encode_report,
)
from flyball.errors import InvalidValue
from flyball.store import led_state
from flyball.store.documents import ABSENT, Documents
from flyball.store.led_state import LedState
from flyball.store.protocol import Conflict, Database
from flyball.store.url import open_database

StoredRecord: TypeAlias = led_state.StoredState[ClusterRecord]

_ATTEMPTS = 20


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


class ClusterStore(LedState[ClusterRecord, Client]):
    """The records of one cluster in a database. Calls wait for the database: make them from a worker thread."""

    def __init__(self, database: Database, name: str) -> None:
        super().__init__(database, _Codec(), space="clusters", label="cluster", key=name)
        self._name = name
        self._setups = Documents(database, "cluster setups")

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
            return Setup(setup.config, setup.drains, (*setup.channels, channel))

        return self._change_setup(add)

    def remove_channel(self, name: str) -> Setup:
        return self._change_setup(
            lambda setup: Setup(
                setup.config, setup.drains, tuple(one for one in setup.channels if one.name != name)
            )
        )

    def drain(self, node: str, *, wanted: bool = True) -> Setup:
        """Ask for a node to be emptied (or no longer)."""

        def change(setup: Setup) -> Setup:
            if node not in setup.config.nodes:
                known = ", ".join(setup.config.nodes)
                raise InvalidValue(f"there is no node {node!r} in cluster {self._name!r}: it has {known}")
            drains = setup.drains | {node} if wanted else setup.drains - {node}
            if drains >= set(setup.config.nodes):
                raise InvalidValue(f"node {node!r} cannot be emptied: cluster {self._name!r} would have no other")
            return Setup(setup.config, drains, setup.channels)

        return self._change_setup(change)

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
            return Setup(after.config, after.drains, after.channels, document.version)
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
