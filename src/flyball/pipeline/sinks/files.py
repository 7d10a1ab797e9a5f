"""Where a sink writes: whether it may, before anything starts, and files that change as a whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from flyball.errors import InvalidValue


def writable_file(path: Path) -> None:
    """Raise `InvalidValue` if that file could not be written."""
    if path.is_dir():
        raise InvalidValue(f"path = {str(path)!r} is a folder; name a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise InvalidValue(f"path = {str(path)!r} may not be written; change its permissions or name another file")
    _writable_parent(path)


def writable_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidValue(f"path = {str(path)!r} is a file; name a folder")
    _writable_parent(path / "file")


def _writable_parent(path: Path) -> None:
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise InvalidValue(f"path = {str(path)!r}: {str(nearest)!r} is not a folder; name another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidValue(
            f"path = {str(path)!r}: the folder {str(nearest)!r} may not be written; name another folder"
        )


def replaced(path: Path, content: bytes) -> None:
    """Give a file new content at once: whoever reads it, even after a power cut, sees the old or the new one."""
    beside = path.with_name(f".{path.name}.new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    moved(beside, path)


def moved(path: Path, to: Path) -> None:
    path.replace(to)
    folder = os.open(to.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Position:
    """How far a sink has come, in a file, for targets that cannot keep it themselves."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next: dict[int, int] = {}

    def read(self) -> Mapping[int, int]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            known = json.loads(self._path.read_text())
            self._next = {int(partition): following for partition, following in known.items()}
        return dict(self._next)

    def note(self, partition: int, following: int) -> None:
        self._next[partition] = following
        replaced(self._path, json.dumps(self._next).encode())
