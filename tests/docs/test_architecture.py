"""Every file and package that the architecture page names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = ROOT / "src" / "flyball"
BASES = (SOURCES, SOURCES / "pipeline")  # the walk of an event names files of the pipeline


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", PAGE))
    assert len(named) > 30
    assert sorted(name for name in named if not any((base / name).is_file() for base in BASES)) == []


def test_every_package_has_a_row() -> None:
    packages = {path.name for path in SOURCES.iterdir() if (path / "__init__.py").is_file()}
    rows = set(re.findall(r"`([a-z_0-9]+)/`", PAGE)) | set(re.findall(r"`([a-z_0-9]+)`", PAGE))
    assert packages - rows == set()
