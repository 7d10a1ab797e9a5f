"""Where Flyball keeps files that it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache; FLYBALL_CACHE moves the whole cache elsewhere."""
    root = os.environ.get("FLYBALL_CACHE")
    if root is None:
        root = str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "flyball")
    folder = Path(root) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
