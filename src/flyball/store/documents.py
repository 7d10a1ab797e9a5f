"""Versioned values: the state of a group's coordinator and of a cluster's manager.

A document is written only if it is still the one that was read (compare and set by version) and, with a lease,
only by its holder (fencing token); both are checked in the transaction that writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flyball.store.leases import Lease, check_token
from flyball.store.protocol import Conflict, Database, Transaction

ABSENT = 0
"""Version of a document that does not exist; pass it as `expected` to create one."""


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value as of `version`. Versions grow and are never used twice."""

    key: str
    value: Any
    version: int


class Documents:
    """The documents of one space ("groups", "clusters", …) of a database."""

    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self._space = space

    def get(self, key: str) -> Document | None:
        return self._database.read(lambda t: read_document(t, self._space, key))

    def version(self, key: str) -> int:
        """The version of a document, without reading it."""
        return self._database.read(lambda t: self._version(t, key))

    def all(self) -> list[Document]:
        """All documents of the space by key, in one consistent state."""
        rows = self._database.read(
            lambda t: t.execute(
                "SELECT key, value, version FROM flyball_document WHERE space = ? ORDER BY key", (self._space,)
            ).fetchall()
        )
        return [Document(key, json.loads(value), int(version)) for key, value, version in rows]

    def put(
        self,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        lease: Lease | None = None,
        also: Callable[[Transaction], None] | None = None,
    ) -> Document:
        """Write if the version is still `expected` (None: any version) and the lease is still valid.

        Raises `Conflict` or `Fenced` if not; then nothing was written. `also` is done in the same transaction.
        """
        text = json.dumps(value)

        def work(transaction: Transaction) -> int:
            self._check(transaction, key, expected, lease)
            if also is not None:
                also(transaction)
            return write_document(transaction, self._space, key, text)

        return Document(key, json.loads(text), self._database.write(work))

    def delete(self, key: str, *, expected: int | None = None, lease: Lease | None = None) -> None:
        """Remove under the same conditions; it is no error if the document does not exist."""

        def work(transaction: Transaction) -> None:
            self._check(transaction, key, expected, lease)
            delete_document(transaction, self._space, key)

        self._database.write(work)

    def _check(self, transaction: Transaction, key: str, expected: int | None, lease: Lease | None) -> None:
        if lease is not None:
            check_token(transaction, lease)
        version = self._version(transaction, key)
        if expected is not None and version != expected:
            raise Conflict(
                f"{self._space}/{key} is at version {version}, not {expected} as expected; read it again and retry"
            )

    def _version(self, transaction: Transaction, key: str) -> int:
        row = transaction.execute(
            "SELECT version FROM flyball_document WHERE space = ? AND key = ?", (self._space, key)
        ).fetchone()
        return ABSENT if row is None else int(row[0])


def read_document(transaction: Transaction, space: str, key: str) -> Document | None:
    """Read a document in a transaction of its caller."""
    row = transaction.execute(
        "SELECT value, version FROM flyball_document WHERE space = ? AND key = ?", (space, key)
    ).fetchone()
    return None if row is None else Document(key, json.loads(row[0]), int(row[1]))


def write_document(transaction: Transaction, space: str, key: str, text: str) -> int:
    """Write a JSON text in a transaction of its caller, whatever the version was; return the new one."""
    version = next_version(transaction)
    transaction.execute(
        "INSERT INTO flyball_document (space, key, version, value) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, value = excluded.value",
        (space, key, version, text),
    )
    return version


def delete_document(transaction: Transaction, space: str, key: str) -> None:
    """Remove a document in a transaction of its caller."""
    transaction.execute("DELETE FROM flyball_document WHERE space = ? AND key = ?", (space, key))


def next_version(transaction: Transaction) -> int:
    """A number that is larger than all before it, in this database."""
    transaction.execute("UPDATE flyball_document_version SET last = last + 1")
    return int(transaction.execute("SELECT last FROM flyball_document_version").fetchone()[0])
