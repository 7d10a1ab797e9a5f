"""What the kernel knows about bytes on their way."""

from __future__ import annotations

import socket
import sys

import pytest

from flyball.brokers.core.tcp_progress import tcp_progress
from flyball.servers.ports import LOOPBACK


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
def test_what_the_peer_has_acknowledged_is_reported() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.setblocking(False)
            sent = client.send(bytes(4 << 20))
            before = tcp_progress(client)
            assert 0 < before.unacknowledged_bytes < sent
            while (now := tcp_progress(client)).unacknowledged_bytes:
                peer.recv(1 << 20)
            assert now.acknowledged_bytes >= before.acknowledged_bytes + before.unacknowledged_bytes
            assert not now.in_flight
    assert tcp_progress(client) == (0, 0, False)
