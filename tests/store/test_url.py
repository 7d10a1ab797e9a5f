"""Databases by URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball.errors import InvalidValue
from flyball.store import Documents, SqliteDatabase, open_database


def test_a_file_by_its_absolute_path(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/groups.db")
    Documents(database, "groups").put("a", 1)
    database.close()
    with SqliteDatabase(tmp_path / "groups.db") as again:
        document = Documents(again, "groups").get("a")
    assert document is not None
    assert document.value == 1


def test_a_file_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_database("sqlite:///groups.db").close()
    assert (tmp_path / "groups.db").exists()


@pytest.mark.parametrize("url", ["groups.db", "sqlite://groups.db", "sqlite:///", "redis://localhost", ""])
def test_other_urls_are_refused_in_one_sentence(url: str) -> None:
    with pytest.raises(InvalidValue, match=r"store must be a URL like sqlite:///groups\.db"):
        open_database(url)
