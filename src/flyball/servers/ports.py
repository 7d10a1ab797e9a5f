"""Ports of the loopback interface, where all local servers listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Find distinct ports that are free right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def accepts(port: int) -> bool:
    """Whether this port of the loopback interface accepts connections."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False
