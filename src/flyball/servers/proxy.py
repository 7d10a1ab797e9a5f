"""A TCP proxy that injects network faults while it runs: delay, stall, cut, bandwidth limit.

Threads, not asyncio: a thread's sleep is exact to about 0.1 ms, an event loop's timer to 1 ms, and the delays
that matter between a broker and its clients are a few milliseconds.

Each direction of each connection has a reader, which stamps what arrives with the time at which it is due, and a
writer, which sleeps until then. Delay does not cost throughput: many pieces are in flight at once. The bytes in
flight are limited (the reader waits, so TCP slows the sender down, as on a real link); where the bandwidth is, to
about what a real link holds, or the sender would see its data accepted at once.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from flyball.errors import InvalidValue
from flyball.servers.ports import LOOPBACK

_PIECE_BYTES = 65_536
_IN_FLIGHT_BYTES = 16 << 20
_SLOW_BUFFER_BYTES = 65_536


class FaultProxy:
    """Listens on a port of its own and forwards everything to `target_port`, with the faults that are set.

    `delay_s` is one way, in both directions. `bytes_per_s` limits each direction of each connection (None: no
    limit). `stall()` stops forwarding until `flow()`; `cut()` ends all connections, by default abruptly (RST);
    `refuse()` rejects new ones until `accept()`.
    """

    def __init__(
        self, target_port: int, *, delay_s: float = 0.0, bytes_per_s: float | None = None, host: str = LOOPBACK
    ) -> None:
        self._target = (host, target_port)
        self._delay_s = 0.0
        self._bytes_per_s: float | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._accepting = True
        self._connections: set[_Connection] = set()
        self._connections_made = 0
        self._lock = threading.Lock()
        self.set_delay(delay_s)
        self.set_bandwidth(bytes_per_s)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((LOOPBACK, 0))
        self._closed = False
        self.port = int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._connections)

    @property
    def connections_made(self) -> int:
        """Connections since the start, also those that have ended."""
        with self._lock:
            return self._connections_made

    @property
    def delay_s(self) -> float:
        return self._delay_s

    def set_delay(self, delay_s: float) -> None:
        if not 0 <= delay_s <= 60:
            raise InvalidValue(f"delay_s must be between 0 and 60, got {delay_s}")
        self._delay_s = delay_s

    @property
    def bytes_per_s(self) -> float | None:
        return self._bytes_per_s

    def set_bandwidth(self, bytes_per_s: float | None) -> None:
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise InvalidValue(f"bytes_per_s must be > 0 or None, got {bytes_per_s}")
        self._bytes_per_s = bytes_per_s
        if bytes_per_s is not None:
            with self._lock:
                connections = list(self._connections)
            for connection in connections:
                connection.limit_buffers()

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def refuse(self) -> None:
        self._accepting = False

    def accept(self) -> None:
        self._accepting = True

    def cut(self, *, abruptly: bool = True) -> int:
        """End all connections now; return their number."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.end(abruptly=abruptly)
        return len(connections)

    def start(self) -> None:
        self._listener.listen(128)
        threading.Thread(target=self._serve, name=f"proxy-{self.port}", daemon=True).start()

    def stop(self) -> None:
        self._closed = True
        self.flow()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._listener.close()
        self.cut()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._accepting:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                _reset(client)  # no server: the client gets the same error as without the proxy
                continue
            server.settimeout(None)
            connection = _Connection(self, client, server)
            with self._lock:
                self._connections.add(connection)
                self._connections_made += 1
            connection.start()

    def _discard(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Connection:
    """A client's socket and ours to the server, with a pipe for each direction."""

    def __init__(self, proxy: FaultProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._ends = (client, server)
        self._open_directions = 2
        self._lock = threading.Lock()
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if proxy.bytes_per_s is not None:
            self.limit_buffers()

    def limit_buffers(self) -> None:
        """Let the kernel accept no more than a slow link would hold."""
        for end in self._ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)

    def start(self) -> None:
        client, server = self._ends
        for source, sink in ((client, server), (server, client)):
            _Pipe(self._proxy, self, source, sink).start()

    def direction_done(self) -> None:
        with self._lock:
            self._open_directions -= 1
            last = self._open_directions == 0
        if last:
            self.end(abruptly=False)

    def end(self, *, abruptly: bool) -> None:
        for end in self._ends:
            if abruptly:
                _reset(end)
                continue
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy._discard(self)


class _Pipe:
    """One direction: a reader that stamps, a writer that waits."""

    def __init__(
        self, proxy: FaultProxy, connection: _Connection, source: socket.socket, sink: socket.socket
    ) -> None:
        self._proxy = proxy
        self._connection = connection
        self._source = source
        self._sink = sink
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._change = threading.Condition()
        self._ended = False

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        data = b"first"
        while data:
            try:
                data = self._source.recv(_PIECE_BYTES)
            except OSError:
                data = b""
            with self._change:
                self._pieces.append((time.monotonic() + self._proxy.delay_s, data))
                self._bytes += len(data)
                self._change.notify_all()
                while self._bytes > self._most_bytes() and not self._ended:
                    self._change.wait()

    def _write(self) -> None:
        proxy = self._proxy
        free_at_s = 0.0  # when everything before has been sent
        while True:
            with self._change:
                while not self._pieces:
                    self._change.wait()
                due_s, data = self._pieces.popleft()
                self._bytes -= len(data)
                self._change.notify_all()
            wait_s = due_s - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            proxy._flowing.wait()
            if not data:
                break
            try:
                while data:  # the limit may change between two pieces
                    size = self._slice_bytes()
                    piece, data = data[:size], data[size:]
                    if proxy.bytes_per_s is not None:
                        free_at_s = max(free_at_s, time.monotonic()) + len(piece) / proxy.bytes_per_s
                        time.sleep(max(0.0, free_at_s - time.monotonic()))
                    self._sink.sendall(piece)
            except OSError:
                break
        with suppress(OSError):
            self._sink.shutdown(socket.SHUT_WR)
        with self._change:
            self._ended = True
            self._change.notify_all()
        self._connection.direction_done()

    def _most_bytes(self) -> int:
        """Bytes that are on the link at once: with a limit, those of its delay and a small buffer."""
        limit = self._proxy.bytes_per_s
        return (
            _IN_FLIGHT_BYTES if limit is None else _SLOW_BUFFER_BYTES + int(limit * (self._proxy.delay_s + 0.05))
        )

    def _slice_bytes(self) -> int:
        """Size of a piece: with a limit about 10 ms, so that the stream is even and a new limit acts soon."""
        limit = self._proxy.bytes_per_s
        return _PIECE_BYTES if limit is None else max(256, min(_PIECE_BYTES, int(limit / 100)))


def _reset(end: socket.socket) -> None:
    """Close so that the other side sees a reset, as when a machine has crashed."""
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A thread that waits in recv keeps the socket open: wake it, without the FIN that ends writing.
        end.shutdown(socket.SHUT_RD)
    end.close()
