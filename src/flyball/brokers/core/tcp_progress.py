"""How far the bytes of a TCP connection have come, as the kernel knows it.

What a program has written is in the kernel's buffer for a while, megabytes of it: over a slow link that takes
many seconds in which the program sees nothing happen. The kernel knows what the peer has acknowledged.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from typing import NamedTuple, Protocol

# struct tcp_info of Linux (linux/tcp.h): u32 tcpi_unacked at 24, u64 tcpi_bytes_acked at 120 (since version 4.1)
_UNACKED, _BYTES_ACKED = struct.Struct("=24xI"), struct.Struct("=120xQ")
_INT = struct.Struct("i")

MOVED_BYTES = 512
"""Fewer bytes are no progress of a message: the kernel of a frozen server acknowledges heartbeats."""


class _Socket(Protocol):
    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, buffer_bytes: int, /) -> bytes: ...


class TcpProgress(NamedTuple):
    """What the peer's kernel has acknowledged since the connection began, and what it has not.

    `in_flight`: some of the latter is on its way. Otherwise the peer's buffer is full, and its kernel answers.
    """

    acknowledged_bytes: int
    unacknowledged_bytes: int
    in_flight: bool


def tcp_progress(connection: _Socket | None) -> TcpProgress:
    """The progress of a connection; zeros where the system does not report it, or the connection is closed."""
    if sys.platform == "linux" and connection is not None:
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
            (queued,) = _INT.unpack(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_INT.size)))
        except (OSError, ValueError):
            return TcpProgress(0, 0, False)
        if len(info) == _BYTES_ACKED.size:
            return TcpProgress(_BYTES_ACKED.unpack(info)[0], queued, _UNACKED.unpack_from(info)[0] > 0)
    return TcpProgress(0, 0, False)
