"""The receive side over HTTP: POST a body, get 202 once it is durable.

    POST /publish            202 {"id": …}   durable in the outbox
                             401             the token is missing or wrong
                             403             from a web page of another origin
                             413             larger than `max_body_bytes`, or than the broker accepts
                             503             the outbox is full: try again (Retry-After)
    GET  /health             200 counters as JSON

The message comes as the body. Headers: `Content-Type` is stored; `X-Message-Id`, `X-Message-Key` and
`X-Message-Urgency` (0 … 9) set the message's own. Connections are kept alive. This is as much of HTTP/1.1 as that
takes (bodies with Content-Length; no chunks), on a socket of this host: put a proxy in front for TLS and the
outside world.
"""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Mapping

from flyball.brokers.port import TooLarge
from flyball.errors import FlyballError, InvalidValue
from flyball.futures import wait_at_most
from flyball.publisher.handle import PublisherClosed
from flyball.publisher.http_access import HttpAccess
from flyball.publisher.publisher import Publisher
from flyball.store import StoreError
from flyball.store.protocol import NeverFits

_REASONS = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_EXTRA_HEADERS = {401: "WWW-Authenticate: Bearer\r\n", 503: "Retry-After: 1\r\n"}
_SINGLE_HEADERS = {"authorization", "content-length", "host", "origin"}
_LONGEST_HEAD = 16 * 1024
_LONGEST_NUMBER = 18  # digits: more than any size, and quick to convert
_SLOWEST_BYTES_PER_S = 10_000
# A client that gets its answer before it has sent everything must be able to finish sending: else the system
# resets the connection, and the client never sees the answer.
_DISCARD_S = 30.0
_DISCARD_SILENCE_S = 5.0
_DISCARD_CHUNK_BYTES = 1 << 16


class _Refusal(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Listener:
    """Serves `publisher` on host and port (0: any free one; `port` tells which) while it is entered.

    The publisher should be opened with `when_full="error"`: a client that gets 503 can do something else. With a
    `token`, who publishes must send it (`Authorization: Bearer TOKEN`). A client that neither sends nor reads for
    `idle_timeout_s` is disconnected, and earlier when there are `most_connections` (at most half of the
    descriptors that the process may open) and another client comes.
    """

    def __init__(
        self,
        publisher: Publisher,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        max_body_bytes: int = 1 << 20,
        most_connections: int = 1000,
        idle_timeout_s: float = 60.0,
        token: str | None = None,
    ) -> None:
        self._publisher, self._host, self.port = publisher, host, port
        self._max_body_bytes = max_body_bytes
        # The outbox and the brokers' connections need descriptors, too, and more of them after an outage.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            descriptors = 4 * most_connections
        self._most_connections = min(most_connections, max(descriptors // 2, 1))
        self._most_open = min(2 * most_connections, max(descriptors * 3 // 4, 2))
        self._most_at_once = min(
            1024, max(descriptors // 8, 8)
        )  # asyncio accepts so many before anything is served
        self._idle_timeout_s = idle_timeout_s
        self._access = HttpAccess(host, token)
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._idle: dict[asyncio.Task[None], None] = {}
        """Connections that wait for a request, the one that waits longest first."""
        self._served = 0
        self._closing = False

    async def __aenter__(self) -> Listener:
        try:
            self._server = await asyncio.start_server(
                self._on_client, self._host, self.port, limit=_LONGEST_HEAD, backlog=self._most_at_once
            )
        except OSError as error:
            raise InvalidValue(f"cannot listen on {self._host}:{self.port}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self._server.close()
        clients = dict(self._clients)
        for task, writer in clients.items():
            task.cancel()
            writer.transport.abort()  # a client that does not read must not delay the end
        await asyncio.gather(*clients, return_exceptions=True)

    def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Every connection is bounded in time, also a refused one; this bounds how many are refused at once.
        if self._closing or (len(self._clients) >= self._most_open and not self._end_idle()):
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients[task] = writer
        self._idle[task] = None
        task.add_done_callback(lambda task: self._clients.pop(task, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._idle.pop(task, None)
        accepted = self._served < self._most_connections or self._end_idle()
        self._served += accepted
        try:
            if accepted:
                while await self._serve_one(reader, writer, task):
                    pass
            else:
                await self._answer(writer, 503, {"error": "too many connections"}, keep=False)
            await _finish(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected or is too slow, or the server closes
        finally:
            self._served -= accepted
            writer.transport.abort()

    def _end_idle(self) -> bool:
        """End the connection that has been idle longest; False: all of them are being served."""
        task = next(iter(self._idle), None)
        if task is None:
            return False
        del self._idle[task]
        task.cancel()
        self._clients.pop(task).transport.abort()
        return True

    async def _serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> bool:
        """Serve one request; return whether the connection stays open."""
        self._idle[task] = None
        try:
            head = await wait_at_most(reader.readuntil(b"\r\n\r\n"), self._idle_timeout_s)
        except asyncio.LimitOverrunError:
            await self._answer(writer, 431, {"error": f"headers longer than {_LONGEST_HEAD} bytes"}, keep=False)
            return False
        except (asyncio.IncompleteReadError, TimeoutError):
            return False  # the client has sent everything, or is idle
        finally:
            self._idle.pop(task, None)
        try:
            method, path, headers = _parse(head)
            keep = headers.get("connection", "").lower() != "close"
            refusal = self._access.refusal(headers, publishes=path == "/publish")
            if refusal is not None:
                raise _Refusal(*refusal)
            if path == "/health" and method == "GET":
                # A body is not read: what follows it could not be found.
                keep = keep and headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
                await self._answer(writer, 200, self._publisher.stats.counts(), keep=keep)
                return keep
            if path != "/publish":
                raise _Refusal(404, f"there is nothing at {path}: POST to /publish")
            if method != "POST":
                raise _Refusal(405, f"{method} is not supported: POST the message")
            length = self._length(headers)
            if headers.get("expect", "").lower() == "100-continue":
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            timeout_s = self._idle_timeout_s + length / _SLOWEST_BYTES_PER_S
            body = await wait_at_most(reader.readexactly(length), timeout_s)
        except _Refusal as refused:
            # The body, if any, was not read: the next request could not be found.
            await self._answer(writer, refused.status, {"error": str(refused)}, keep=False)
            return False
        status, document = await self._publish(body, headers)
        await self._answer(writer, status, document, keep=keep)
        return keep

    def _length(self, headers: dict[str, str]) -> int:
        if "transfer-encoding" in headers:
            raise _Refusal(411, "send Content-Length instead of Transfer-Encoding")
        text = headers.get("content-length")
        if text is None or not text.isascii() or not text.isdigit():
            raise _Refusal(411, f"Content-Length must be a number of bytes, got {text!r}")
        if len(text) > _LONGEST_NUMBER:
            raise _Refusal(400, f"Content-Length must have at most {_LONGEST_NUMBER} digits, got {len(text)}")
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
        except (TooLarge, NeverFits) as error:
            return 413, {"error": str(error)}
        except (StoreError, PublisherClosed) as error:  # also of a full outbox
            return 503, {"error": str(error)}
        except (FlyballError, UnicodeError) as error:
            return 400, {"error": str(error)}
        if not handle.accepted:
            return 503, {"error": "the outbox is full: the message was dropped"}
        return 202, {"id": handle.id}

    async def _answer(
        self, writer: asyncio.StreamWriter, status: int, document: Mapping[str, object], *, keep: bool
    ) -> None:
        body = json.dumps(document).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"{_EXTRA_HEADERS.get(status, '')}Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await wait_at_most(writer.drain(), self._idle_timeout_s)


async def _finish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close after the client has got its answers: discard what it still sends, within bounds."""
    writer.write_eof()
    async with asyncio.timeout(_DISCARD_S):
        while not reader.at_eof():
            await wait_at_most(reader.read(_DISCARD_CHUNK_BYTES), _DISCARD_SILENCE_S)
        writer.close()
        await writer.wait_closed()


def _urgency(text: str) -> int:
    if len(text) != 1 or text not in "0123456789":
        raise InvalidValue(f"X-Message-Urgency must be an integer from 0 to 9, got {text[:20]!r}")
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
        if name.lower() in headers and name.lower() in _SINGLE_HEADERS:
            raise _Refusal(400, f"{name} occurs twice")
        headers[name.lower()] = value.strip()
    if parts[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return parts[0], parts[1].partition("?")[0], headers
