"""A connection belongs to the process that opened it: a child of a fork would write into its parent's."""

from __future__ import annotations

import os

from flyball.store.protocol import StoreError


class ProcessCheck:
    """Remembers the process that opened `what`."""

    def __init__(self, what: str) -> None:
        self._what, self._process = what, os.getpid()

    def check(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._what} was opened by process {self._process} and cannot be used by its child "
                f"{os.getpid()}; open it again after the fork"
            )
