"""A channel of this or another broker: the input of another pipeline, or of any program.

A message's place in its log is its sequence number, so a log that drops repeats stores each exactly once.
Watermark marks are copied too: they advance the reader's event time while there are no messages.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks.files import Position
from flyball.pipeline.sinks.streams import Stream


class ChannelTarget:
    linger_s = 0.0

    def __init__(self, stream: Stream, url: str, channel: str, producer: str, position: Position) -> None:
        self._stream, self._channel, self._producer, self._position = stream, channel, producer, position
        self._sinks = LogSinks(url)

    def open(self, stopping: threading.Event) -> Mapping[int, int]:  # noqa: ARG002
        self._sinks.open()
        self._sinks.declare(self._channel)
        return self._position.read()

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        producer = f"{self._producer}-{partition}"
        self._sinks.add(self._channel, producer)
        for offset, body in zip(offsets, bodies, strict=True):
            documents = self._stream.documents([body]) if self._stream.packed else [body]
            self._sinks.append(self._channel, producer, offset, documents)
        self._position.note(partition, offsets[-1] + 1)

    def close(self) -> None:
        self._sinks.close()
