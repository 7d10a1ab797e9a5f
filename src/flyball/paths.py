"""The folder of files that Flyball can create or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Create a folder of that name in the user's cache; FLYBALL_CACHE sets another cache folder."""
    root = os.environ.get("FLYBALL_CACHE")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "flyball")
    folder = Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
