"""State that must survive a crash: unsent messages, leases, and the state of groups, clusters and loops.

    protocol.py     the interface of a database, and the errors
    sqlite.py       a file, shared by the processes of a host; schema.py: its tables, version by version
    postgresql.py   leases, members and documents shared by hosts
    url.py          the database that a URL names
    outbox.py       accepted messages until a broker has confirmed them; application_connection.py: those that an
                    application accepts in its own transaction
    dead_letters.py accepted messages that a target then refused for good
    leases.py       leadership with fencing tokens; host_time.py: the clock of leases
    documents.py    versioned values for groups and clusters
    sessions.py     members that are alive as long as they report
    led_state.py    the records of processes that follow a leader; candidacy.py: one that would lead
    positions.py    how far a group has read each partition of a log
    generations.py  a fence around effects: what was written under a generation ends what came before
    loop_state.py   the state from which a loop continues after a restart
    worker_pool.py  threads that call all this for async packages

Everything else here is synchronous and may be called from any thread.
"""

from __future__ import annotations

from flyball.store.dead_letters import DeadLetter, DeadLetters
from flyball.store.documents import Document, Documents
from flyball.store.generations import GenerationFence
from flyball.store.leases import Lease, Leases
from flyball.store.loop_state import LoopStates
from flyball.store.outbox import Outbox, OutboxEntry, Pending, enqueue
from flyball.store.protocol import (
    Busy,
    Conflict,
    Database,
    DiskFull,
    Fenced,
    Full,
    NewerSchema,
    StateStore,
    StoreError,
)
from flyball.store.sessions import Sessions, StoredSession
from flyball.store.sqlite import SqliteDatabase
from flyball.store.url import open_database

__all__ = [
    "Busy",
    "Conflict",
    "Database",
    "DeadLetter",
    "DeadLetters",
    "DiskFull",
    "Document",
    "Documents",
    "Fenced",
    "Full",
    "GenerationFence",
    "Lease",
    "Leases",
    "LoopStates",
    "NewerSchema",
    "Outbox",
    "OutboxEntry",
    "Pending",
    "Sessions",
    "SqliteDatabase",
    "StateStore",
    "StoreError",
    "StoredSession",
    "enqueue",
    "open_database",
]
