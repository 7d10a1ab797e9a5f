"""State that must survive: what was accepted and not yet sent, who leads, what groups, clusters and loops know.

    protocol.py     what a database has to offer, the values, the errors
    sqlite.py       the one database there is so far; schema.py its tables, version by version
    outbox.py       accepted messages until a broker has confirmed them
    leases.py       who leads, with fencing tokens; host_time.py the clock that leases are judged by
    documents.py    versioned values for groups and clusters
    loop_state.py   what a loop needs to go on where it stopped

Everything here is synchronous and may be called from any thread; async rooms call it in threads.
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
