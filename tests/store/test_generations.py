"""Effects of an owner that was replaced do not happen."""

from __future__ import annotations

import pytest

from flyball.store import Database, Documents, Fenced, GenerationFence
from flyball.store.protocol import Transaction


def _add(transaction: Transaction) -> int:
    transaction.execute("INSERT INTO effect VALUES (1)")
    return 1


def _effects(database: Database) -> int:
    return int(database.read(lambda t: t.execute("SELECT count(*) FROM effect").fetchone()[0]))


def test_a_later_generation_ends_earlier_ones(shared_database: Database) -> None:
    shared_database.write(lambda t: t.execute("CREATE TABLE effect (n INTEGER)").rowcount)
    fence = GenerationFence(shared_database)
    assert fence.apply("shop", ("orders", 3), 5, _add) == 1
    assert fence.apply("shop", ("orders", 3), 5, _add) == 1
    assert fence.apply("shop", ("orders", 3), 9, _add) == 1
    with pytest.raises(Fenced, match=r"generation 5 of queue orders\.3 in group 'shop' was followed by 9"):
        fence.apply("shop", ("orders", 3), 5, _add)
    assert _effects(shared_database) == 3


def test_queues_and_groups_do_not_disturb_each_other(shared_database: Database) -> None:
    fence = GenerationFence(shared_database)
    documents = Documents(shared_database, "effects")
    for group, queue in (
        ("shop", ("orders", 3)),
        ("shop", ("orders", 4)),
        ("shop", ("bills", 3)),
        ("b", ("orders", 3)),
    ):
        fence.apply(group, queue, 9, lambda t: t.execute("SELECT 1").fetchone())
    for group, queue in (("shop", ("orders", 5)), ("c", ("orders", 3))):
        fence.apply(group, queue, 1, lambda t: t.execute("SELECT 1").fetchone())
    assert documents.all() == []


def test_an_effect_that_fails_leaves_no_generation_behind(shared_database: Database) -> None:
    fence = GenerationFence(shared_database)

    def fail(transaction: Transaction) -> None:
        transaction.execute("SELECT 1")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fence.apply("shop", ("orders", 3), 9, fail)
    fence.apply("shop", ("orders", 3), 5, lambda t: t.execute("SELECT 1").fetchone())
