"""Positions: written by the owner of the newest generation, and by nobody else."""

from __future__ import annotations

import pytest

from flyball.store import Database, Fenced
from flyball.store.positions import Positions


def test_an_owner_continues_where_the_one_before_stopped(shared_database: Database) -> None:
    positions = Positions(shared_database, "shop")
    orders = ("orders", 0)
    assert positions.claim(orders, 1) is None
    assert positions.store({orders: 40}, {orders: 1}) == set()
    assert positions.claim(orders, 2) == 40
    assert positions.claim(orders, 2) == 40, "the same owner may claim again"


def test_an_owner_of_before_stores_nothing(shared_database: Database) -> None:
    positions = Positions(shared_database, "shop")
    lost, kept = ("orders", 0), ("orders", 1)
    for partition in (lost, kept):
        positions.claim(partition, 1)
    positions.claim(lost, 2)
    assert positions.store({lost: 90, kept: 70}, {lost: 1, kept: 1}) == {lost}
    assert positions.claim(lost, 3) is None
    assert positions.claim(kept, 3) == 70
    with pytest.raises(Fenced, match=r"generation 2 of queue orders\.0 in group 'shop' was followed by 3"):
        positions.claim(lost, 2)


def test_a_partition_of_which_no_generation_is_known_is_refused(shared_database: Database) -> None:
    positions = Positions(shared_database, "shop")
    positions.claim(("orders", 0), 1)
    assert positions.store({("orders", 0): 5}, {}) == {("orders", 0)}


def test_groups_are_separate(shared_database: Database) -> None:
    shop, audit = Positions(shared_database, "shop"), Positions(shared_database, "audit")
    shop.claim(("orders", 0), 7)
    assert audit.claim(("orders", 0), 1) is None
