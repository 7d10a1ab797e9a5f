"""A folder of Parquet files, each named after the messages it holds and moved into place when it is complete.

The name is the position: after a crash, the newest complete file says what comes next.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from flyball.pipeline.sinks.files import moved
from flyball.pipeline.sinks.streams import Stream

_NAME = re.compile(r"part-(\d+)-(\d+)-(\d+)\.parquet")


class ParquetTarget:
    def __init__(self, stream: Stream, folder: Path, linger_s: float) -> None:
        self._stream, self._folder, self.linger_s = stream, folder, linger_s

    def open(self, stopping: threading.Event) -> Mapping[int, int]:  # noqa: ARG002
        self._folder.mkdir(parents=True, exist_ok=True)
        following: dict[int, int] = {}
        for path in self._folder.iterdir():
            found = _NAME.fullmatch(path.name)
            if found is not None:
                partition, stop = int(found[1]), int(found[3])
                following[partition] = max(following.get(partition, 0), stop)
            elif path.name.startswith(".part-"):
                path.unlink()  # was not complete when the process died
        return following

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        import pyarrow.parquet as pq

        # Also without rows: the file is the only place that says how far it has come.
        name = f"part-{partition:04}-{offsets[0]:012}-{offsets[-1] + 1:012}.parquet"
        beside = self._folder / f".{name}"
        with beside.open("wb") as file:
            pq.write_table(self._stream.rows(bodies), file)
            file.flush()
            os.fsync(file.fileno())
        moved(beside, self._folder / name)

    def close(self) -> None:
        """Nothing is open between writes."""
