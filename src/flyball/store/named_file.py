"""A file that was deleted or replaced while it is open takes what is written, and loses it with the process."""

from __future__ import annotations

from pathlib import Path

from flyball.store.protocol import StoreError


class NamedFile:
    """Remembers which file `path` names."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # the program may change its folder
        status = self._path.stat()
        self._identity = status.st_dev, status.st_ino

    def check(self) -> None:
        """Raise `StoreError` if the path names no file any more, or another one."""
        try:
            status = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise self._lost("deleted") from None
        except OSError:
            return  # a folder that may no longer be read says nothing about the file
        if (status.st_dev, status.st_ino) != self._identity:
            raise self._lost("replaced by another file")

    def _lost(self, how: str) -> StoreError:
        return StoreError(
            f"{self._path} was {how} while it was open, and what is written now would be lost: restart the program"
        )
