"""The errata page is executable: every example on it must give what it prints."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errata.md"


def test_every_example_of_the_errata_page_holds() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.failed == 0
    assert outcome.attempted > 35
