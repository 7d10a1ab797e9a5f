"""The receive side over HTTP: POST a body, get 202 once it is durable.

    POST /publish            202 {"id": …}   durable in the outbox
                             503             the outbox is full: try again (Retry-After)
                             413             larger than `max_body_bytes`
    GET  /health             200 counters as JSON

The message comes as the body. Headers: `Content-Type` is stored; `X-Message-Id`, `X-Message-Key` and
`X-Message-Urgency` (0 … 9) set the message's own. Connections are kept alive. This is as much of HTTP/1.1 as that
takes (bodies with Content-Length; no chunks), on a socket of this host: put a proxy in front for TLS and the
outside world.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress

from flyball.errors import FlyballError, InvalidValue
from flyball.publisher.publisher import Publisher
from flyball.store import Full, StoreError

_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_LONGEST_HEAD = 16 * 1024
_IDLE_S = 60.0


class _Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Listener:
    """Serves `publisher` on host and port (0: any free one; `port` tells which) while it is entered.

    The publisher should be opened with `when_full="error"`: a client that gets 503 can do something else.
    """

    def __init__(
        self,
        publisher: Publisher,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_body_bytes: int = 1 << 20,
        most_connections: int = 1000,
    ) -> None:
        self._publisher, self._host, self.port = publisher, host, port
        self._max_body_bytes = max_body_bytes
        self._most_connections = most_connections
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Listener:
        try:
            self._server = await asyncio.start_server(
                self._on_client, self._host, self.port, limit=_LONGEST_HEAD, backlog=1024
            )
        except OSError as error:
            raise InvalidValue(f"cannot listen on {self._host}:{self.port}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            if len(self._clients) > self._most_connections:
                await _answer(writer, 503, {"error": "too many connections"}, keep=False)
                return
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass  # the client disconnected or is idle, or the server closes
        finally:
            self._clients.discard(task)
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether the connection stays open."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _IDLE_S)
        except asyncio.LimitOverrunError:
            await _answer(writer, 431, {"error": f"headers longer than {_LONGEST_HEAD} bytes"}, keep=False)
            return False
        try:
            method, path, headers = _parse(head)
            keep = headers.get("connection", "").lower() != "close"
            if path == "/health" and method == "GET":
                await _answer(writer, 200, self._publisher.stats.counts(), keep=keep)
                return keep
            if path != "/publish":
                raise _Refusal(404, f"there is nothing at {path}: POST to /publish")
            if method != "POST":
                raise _Refusal(405, f"{method} is not supported: POST the message")
            length = self._length(headers)
            if headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await asyncio.wait_for(reader.readexactly(length), _IDLE_S)
        except _Refusal as refusal:
            # The body, if any, was not read: the next request could not be found.
            await _answer(writer, refusal.status, {"error": str(refusal)}, keep=False)
            return False
        status, document = await self._publish(body, headers)
        await _answer(writer, status, document, keep=keep)
        return keep

    def _length(self, headers: dict[str, str]) -> int:
        if "transfer-encoding" in headers:
            raise _Refusal(411, "send Content-Length instead of Transfer-Encoding")
        text = headers.get("content-length")
        if text is None or not text.isascii() or not text.isdigit():
            raise _Refusal(411, f"Content-Length must be a number of bytes, got {text!r}")
        if int(text) > self._max_body_bytes:
            raise _Refusal(413, f"a message must have at most {self._max_body_bytes} bytes, got {text}")
        return int(text)

    async def _publish(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, object]]:
        key = headers.get("x-message-key")
        try:
            handle = await self._publisher.publish(
                body,
                id=headers.get("x-message-id") or None,
                key=None if key is None else key.encode("latin-1"),
                urgency=_urgency(headers.get("x-message-urgency", "4")),
                content_type=headers.get("content-type"),
            )
        except (Full, StoreError) as error:
            return 503, {"error": str(error)}
        except (FlyballError, UnicodeError) as error:
            return 400, {"error": str(error)}
        if not handle.accepted:
            return 503, {"error": "the outbox is full: the message was dropped"}
        return 202, {"id": handle.id}


def _urgency(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise InvalidValue(f"X-Message-Urgency must be an integer from 0 to 9, got {text!r}")
    return int(text)


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    lines = head[:-4].decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise _Refusal(400, f"not an HTTP/1 request line: {lines[0][:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise _Refusal(400, f"not a header: {line[:80]!r}")
        if name.lower() in headers and name.lower() == "content-length":
            raise _Refusal(400, "Content-Length is given twice")
        headers[name.lower()] = value.strip()
    if parts[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return parts[0], parts[1].partition("?")[0], headers


async def _answer(
    writer: asyncio.StreamWriter, status: int, document: Mapping[str, object], *, keep: bool
) -> None:
    body = json.dumps(document).encode() + b"\n"
    extra = "Retry-After: 1\r\n" if status == 503 else ""
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"{extra}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
