"""The proxy forwards everything unchanged, with the faults that are set (lower bounds only)."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from flyball.errors import InvalidValue
from flyball.servers.ports import free_ports
from flyball.servers.proxy import FaultProxy


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(end: socket.socket) -> None:
        with end, suppress(OSError):
            while data := end.recv(65536):
                end.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                end, _ = listener.accept()
                threading.Thread(target=answer, args=(end,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _ask(end: socket.socket, data: bytes) -> bytes:
    threading.Thread(target=end.sendall, args=(data,), daemon=True).start()
    got = b""
    while len(got) < len(data):
        piece = end.recv(65536)
        if not piece:
            break
        got += piece
    return got


def test_everything_arrives_unchanged(echo_port: int) -> None:
    data = random.Random(1).randbytes(3 << 20)
    with FaultProxy(echo_port, delay_s=0.003) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        assert _ask(end, data) == data


def test_delay_is_added_each_way_and_can_change(echo_port: int) -> None:
    with FaultProxy(echo_port, delay_s=0.05) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        for delay_s in (0.05, 0.1):
            proxy.set_delay(delay_s)
            start_s = time.monotonic()
            assert _ask(end, b"x") == b"x"
            assert time.monotonic() - start_s >= 2 * delay_s


def test_bandwidth_is_limited(echo_port: int) -> None:
    with FaultProxy(echo_port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        proxy.set_bandwidth(1_000_000)
        start_s = time.monotonic()
        assert len(_ask(end, bytes(300_000))) == 300_000
        assert time.monotonic() - start_s >= 0.3


def test_a_limit_that_changes_while_data_flow_loses_and_repeats_nothing(echo_port: int) -> None:
    data = random.Random(2).randbytes(4 << 20)
    with FaultProxy(echo_port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        done = threading.Event()

        def change() -> None:
            for limit in itertools.cycle((1_000_000, None)):
                proxy.set_bandwidth(limit)
                if done.wait(0.02):
                    return

        changing = threading.Thread(target=change)
        changing.start()
        got = _ask(end, data)
        done.set()
        changing.join()
        assert got == data


def test_stall_stops_forwarding_and_loses_nothing(echo_port: int) -> None:
    with FaultProxy(echo_port) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        assert _ask(end, b"before") == b"before"
        proxy.stall()
        end.sendall(b"during")
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(10)
        end.settimeout(None)
        proxy.flow()
        assert end.recv(10) == b"during"


def test_cut_is_a_reset_and_new_connections_work(echo_port: int) -> None:
    with FaultProxy(echo_port) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as end:
            assert _ask(end, b"x") == b"x"
            assert proxy.cut() == 1
            with pytest.raises(ConnectionResetError):
                end.recv(10)
        with socket.create_connection(("127.0.0.1", proxy.port)) as end:
            assert _ask(end, b"y") == b"y"
            assert proxy.cut(abruptly=False) == 1
            assert end.recv(10) == b""
        assert proxy.connections == 0


def test_refuse_rejects_new_connections_until_accept(echo_port: int) -> None:
    with FaultProxy(echo_port) as proxy:
        proxy.refuse()
        with socket.create_connection(("127.0.0.1", proxy.port)) as end, pytest.raises(ConnectionResetError):
            end.recv(1)
        proxy.accept()
        with socket.create_connection(("127.0.0.1", proxy.port)) as end:
            assert _ask(end, b"x") == b"x"


def test_a_missing_server_looks_missing() -> None:
    (port,) = free_ports(1)
    with (
        FaultProxy(port) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as end,
        pytest.raises(ConnectionResetError),
    ):
        end.recv(1)


def test_a_client_that_ends_its_sending_still_gets_the_rest(echo_port: int) -> None:
    with FaultProxy(echo_port, delay_s=0.02) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as end:
        end.sendall(b"last words")
        end.shutdown(socket.SHUT_WR)
        got = b""
        while piece := end.recv(100):
            got += piece
        assert got == b"last words"


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_impossible_settings_are_refused(value: float) -> None:
    with pytest.raises(InvalidValue):
        FaultProxy(1, delay_s=value)
    with pytest.raises(InvalidValue):
        FaultProxy(1, bytes_per_s=value)
