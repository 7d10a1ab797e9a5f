"""Folders and files that Flyball creates."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Create a folder of that name in the user's cache, for files that can be created or fetched again.

    FLYBALL_CACHE sets another cache folder.
    """
    root = os.environ.get("FLYBALL_CACHE")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "flyball")
    folder = Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def create_private(path: Path) -> None:
    """Create a file that its owner alone may read and write, if there is none yet.

    Messages are nobody else's business. SQLite gives its files beside a database the mode of the database. A file
    that cannot be created is reported by whoever opens it next.
    """
    with suppress(OSError):
        path.touch(mode=0o600, exist_ok=False)
