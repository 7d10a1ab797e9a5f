"""One file of JSON lines. A small file beside it says how long it was when which messages were in it.

After a crash whatever goes beyond that length is cut off and written again: it is the same.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from flyball.pipeline.sinks.files import replaced
from flyball.pipeline.sinks.follower import SinkStopped
from flyball.pipeline.sinks.streams import Stream


class JsonLinesTarget:
    linger_s = 0.0

    def __init__(self, stream: Stream, path: Path) -> None:
        self._stream, self._path = stream, path
        self._position_path = path.with_name(f"{path.name}.position")
        self._file: BinaryIO | None = None
        self._next: dict[int, int] = {}
        self._length = 0

    def open(self, stopping: threading.Event) -> Mapping[int, int]:  # noqa: ARG002
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        found = self._path.stat().st_size
        if self._position_path.exists():
            known = json.loads(self._position_path.read_text())
            self._length = known["length"]
            self._next = {int(partition): following for partition, following in known["next"].items()}
        elif found:
            raise SinkStopped(
                f"{self._path} has {found} bytes that no sink wrote: move it away, or name another path"
            )
        if found < self._length:
            raise SinkStopped(
                f"{self._path} has {found} bytes, but {self._length} were written: restore it, or remove "
                f"{self._position_path} as well to have everything written again"
            )
        self._file.truncate(self._length)
        self._note(self._length, self._next)
        return dict(self._next)

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        assert self._file is not None
        # A first try may have failed half-way, on a full disk for example.
        self._file.truncate(self._length)
        lines = b"".join(document + b"\n" for document in self._stream.documents(bodies))
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._note(self._length + len(lines), {**self._next, partition: offsets[-1] + 1})

    def _note(self, length: int, following: dict[int, int]) -> None:
        replaced(self._position_path, json.dumps({"length": length, "next": following}).encode())
        self._length, self._next = length, following

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
