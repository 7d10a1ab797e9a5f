"""Ports of the loopback interface, where all local servers listen."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def accepts(port: int) -> bool:
    """Somebody accepts connections on this port of the loopback interface."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False
