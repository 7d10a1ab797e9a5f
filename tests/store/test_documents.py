"""Documents: compare and set, versions that are never used twice, spaces apart."""

from __future__ import annotations

import threading

import pytest

from flyball.store import Conflict, Database, Documents
from flyball.store.documents import ABSENT


def test_a_document_changes_only_from_the_version_that_was_read(shared_database: Database) -> None:
    groups = Documents(shared_database, "groups")
    first = groups.put("g", {"members": ["a"]}, expected=ABSENT)
    assert groups.get("g") == first
    second = groups.put("g", {"members": ["a", "b"]}, expected=first.version)
    assert second.version > first.version
    with pytest.raises(Conflict, match=f"groups/g is at version {second.version}, not {first.version}"):
        groups.put("g", {"members": []}, expected=first.version)
    with pytest.raises(Conflict):
        groups.put("g", None, expected=ABSENT)
    with pytest.raises(Conflict):
        groups.delete("g", expected=first.version)
    assert groups.get("g") == second


def test_a_document_created_again_never_repeats_a_version(shared_database: Database) -> None:
    groups = Documents(shared_database, "groups")
    old = groups.put("g", 1)
    groups.delete("g", expected=old.version)
    assert groups.get("g") is None
    groups.delete("g")
    groups.put("g", 2)
    with pytest.raises(Conflict):
        groups.put("g", 3, expected=old.version)


def test_spaces_are_separate(shared_database: Database) -> None:
    groups, clusters = Documents(shared_database, "groups"), Documents(shared_database, "clusters")
    groups.put("b", 1)
    groups.put("a", 2)
    clusters.put("a", 3)
    assert [(document.key, document.value) for document in groups.all()] == [("a", 2), ("b", 1)]
    assert [document.value for document in clusters.all()] == [3]


def test_no_update_is_lost_between_threads(shared_database: Database) -> None:
    counter = Documents(shared_database, "counters")
    counter.put("n", 0)

    def add_ten() -> None:
        done = 0
        while done < 10:
            seen = counter.get("n")
            assert seen is not None
            try:
                counter.put("n", seen.value + 1, expected=seen.version)
                done += 1
            except Conflict:
                continue

    threads = [threading.Thread(target=add_ten) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    final = counter.get("n")
    assert final is not None
    assert final.value == 50
