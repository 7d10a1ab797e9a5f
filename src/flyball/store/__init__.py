"""State that must survive a crash: unsent messages, leases, and the state of groups, clusters and loops.

    protocol.py     the interface of a database, and the errors
    sqlite.py       the only database so far; schema.py: its tables, version by version
    outbox.py       accepted messages until a broker has confirmed them
    leases.py       leadership with fencing tokens; host_time.py: the clock of leases
    documents.py    versioned values for groups and clusters
    loop_state.py   the state from which a loop continues after a restart

Everything here is synchronous and may be called from any thread; async packages call it in threads.
"""

from __future__ import annotations

from flyball.store.documents import Document, Documents
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
from flyball.store.sqlite import SqliteDatabase

__all__ = [
    "Busy",
    "Conflict",
    "Database",
    "DiskFull",
    "Document",
    "Documents",
    "Fenced",
    "Full",
    "Lease",
    "Leases",
    "LoopStates",
    "NewerSchema",
    "Outbox",
    "OutboxEntry",
    "Pending",
    "SqliteDatabase",
    "StateStore",
    "StoreError",
    "enqueue",
]
