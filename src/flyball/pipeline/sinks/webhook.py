"""Posts each message to a web address, in order, at least once.

A message that was answered and not noted before a crash is posted again, with the same `Idempotency-Key`. One that
is refused, or still fails after `tries`, goes to a log of its own: one bad message does not hold up the rest.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from flyball.backoff import delays_s
from flyball.pipeline.logs.writer import LogSinks
from flyball.pipeline.sinks.files import Position
from flyball.pipeline.sinks.follower import Interrupted
from flyball.pipeline.sinks.streams import Stream

_LONGEST_S = 30.0
_MAY_PASS = (408, 425, 429)  # besides 500 to 599


class WebhookTarget:
    linger_s = 0.0

    def __init__(
        self,
        stream: Stream,
        name: str,
        url: str,
        tries: int,
        timeout_s: float,
        headers: Mapping[str, str],
        position: Position,
        sinks: LogSinks,
    ) -> None:
        self._stream, self._name, self._headers = stream, name, dict(headers)
        self._url, self._tries, self._timeout_s = urlsplit(url), tries, timeout_s
        self._position, self._sinks = position, sinks
        self._stopping = threading.Event()
        self._undelivered = undelivered_name(name)
        self._connection: http.client.HTTPConnection | None = None

    def open(self, stopping: threading.Event) -> Mapping[int, int]:
        self._stopping = stopping
        self._sinks.add(self._undelivered, None)
        return self._position.read()

    def write(self, partition: int, offsets: Sequence[int], bodies: Sequence[bytes]) -> None:
        for offset, body in zip(offsets, bodies, strict=True):
            for row, document in enumerate(self._stream.documents([body])):
                self._deliver(partition, offset, row, document)
            self._position.note(partition, offset + 1)

    def _deliver(self, partition: int, offset: int, row: int, document: bytes) -> None:
        key = f"{self._name}-{partition}-{offset}-{row}"
        reason = ""
        for delay_s in (*delays_s(self._tries - 1, longest_s=_LONGEST_S), None):
            answer = self._post(key, document)
            if answer is None:
                return
            reason, may_pass = answer
            if not may_pass or delay_s is None:
                break
            if self._stopping.wait(delay_s):
                raise Interrupted(f"{key} was not delivered yet")
        letter = {"key": key, "error": reason, "body": document.decode(errors="backslashreplace")}
        self._sinks.append_unsequenced(self._undelivered, json.dumps(letter).encode())

    def _post(self, key: str, document: bytes) -> tuple[str, bool] | None:
        """None: accepted. Otherwise the reason, and whether it is transient."""
        headers = {"Content-Type": "application/json", **self._headers, "Idempotency-Key": key}
        path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            connection = self._connected()
            connection.request("POST", path, document, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            return f"no answer: {str(error) or type(error).__name__}", True
        if 200 <= answer.status < 300:
            return None
        return f"answered {answer.status} {answer.reason}", answer.status >= 500 or answer.status in _MAY_PASS

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout_s)
        return self._connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def close(self) -> None:
        self._hang_up()


def undelivered_name(sink: str) -> str:
    """The log of messages that a webhook did not take."""
    return f"{sink}.undelivered"
