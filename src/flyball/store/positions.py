"""How far a group has read each partition of a log, written only by the partition's owner.

An owner has a generation, larger than that of every owner before. It claims the partition before it reads; from
then on no earlier owner can store a position, however late it wakes up (`generations`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from flyball.store.documents import read_document, write_document
from flyball.store.generations import check_generation
from flyball.store.protocol import Database, Fenced, Transaction

Partition: TypeAlias = tuple[str, int]
"""Log and number."""

_SPACE = "positions"


class Positions:
    """The positions of one group."""

    def __init__(self, database: Database, group: str) -> None:
        self._database = database
        self._group = group

    def claim(self, partition: Partition, generation: int) -> int | None:
        """Become the owner; return the offset to read from, None if none was stored yet.

        Raises `Fenced` if an owner of a larger generation has claimed it.
        """

        def work(transaction: Transaction) -> int | None:
            check_generation(transaction, self._group, partition, generation)
            document = read_document(transaction, _SPACE, self._key(partition))
            return None if document is None else int(document.value)

        return self._database.write(work)

    def store(self, offsets: Mapping[Partition, int], generations: Mapping[Partition, int]) -> set[Partition]:
        """Store offsets; return the partitions of which nothing was stored, because they have another owner.

        Survives the end of the process at once, a power loss a moment later: then some is read again.
        """

        def work(transaction: Transaction) -> set[Partition]:
            refused = set()
            for partition, offset in offsets.items():
                try:
                    check_generation(transaction, self._group, partition, generations.get(partition, -1))
                except Fenced:
                    refused.add(partition)
                else:
                    write_document(transaction, _SPACE, self._key(partition), str(offset))
            return refused

        return self._database.write(work, durable=False)

    def _key(self, partition: Partition) -> str:
        return json.dumps([self._group, *partition], ensure_ascii=False)
