"""HTTP into the outbox: 202 when durable, 503 when full, 413 when too large."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flyball import OutboxConfig, Publisher
from flyball.brokers import connect
from flyball.errors import InvalidValue
from flyball.publisher.http import Listener
from flyball.store import Outbox, SqliteDatabase


def post(port: int, requests: list[tuple[bytes, dict[str, str]]]) -> list[tuple[int, dict[str, str]]]:
    """Over one connection as long as it is kept."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    answers = []
    for body, headers in requests:
        connection.request("POST", "/publish", body, headers)
        answer = connection.getresponse()
        answers.append((answer.status, json.loads(answer.read())))
    connection.close()
    return answers


def test_accepts_durably_and_refuses_what_is_too_large_or_does_not_fit(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = Publisher(
            "amqp://127.0.0.1:1/",  # nobody there: everything stays in the outbox
            channel="orders",
            outbox=OutboxConfig(tmp_path / "o.db", max_bytes=5000),
            when_full="error",
            close_timeout_s=0.1,
        )
        async with publisher, Listener(publisher, max_body_bytes=2000) as listener:
            answers = await asyncio.to_thread(
                post,
                listener.port,
                [
                    (b"one", {"X-Message-Id": "id-1", "X-Message-Urgency": "0", "X-Message-Key": "k"}),
                    (bytes(1900), {}),
                    (bytes(1900), {}),
                    (bytes(1900), {}),
                    (b"", {"X-Message-Urgency": "12"}),
                    (bytes(2001), {}),
                ],
            )
        assert [status for status, _ in answers] == [202, 202, 202, 503, 400, 413]
        assert answers[0][1] == {"id": "id-1"}
        with SqliteDatabase(tmp_path / "o.db") as database:
            first, *others = Outbox(database).read(0, 1 << 62, 10)
        message = first.message
        assert (message.id, message.body, first.urgency, message.key) == ("id-1", b"one", 0, b"k")
        assert len(others) == 2

    asyncio.run(main())


def test_odd_requests_are_answered_and_do_not_end_the_server() -> None:
    async def main() -> None:
        publisher = Publisher("memory://", channel="q", outbox=None, declare="queue")
        async with publisher, Listener(publisher) as listener:
            for raw, status in [
                (b"nonsense\r\n\r\n", b"400"),
                (b"GET /publish HTTP/1.1\r\n\r\n", b"405"),
                (b"POST /elsewhere HTTP/1.1\r\n\r\n", b"404"),
                (b"POST /publish HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"411"),
                (b"POST /publish HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
                (b"POST /publish HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
                (b"POST /publish HTTP/1.1\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
                (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", b"200"),
            ]:
                assert (await ask(listener.port, raw)).split()[1] == status, raw[:60]

    asyncio.run(main())


def test_the_command_listens_publishes_and_ends_on_a_signal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'broker.db'}"
    command = [sys.executable, "-m", "flyball", "publish", url, "orders", "--declare", "queue", "--json"]
    command += ["--listen", "127.0.0.1:0", "--outbox", str(tmp_path / "o.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r":(\d+)/publish", server.stderr.readline())
        assert found is not None
        answers = post(int(found[1]), [(b"%d" % number, {}) for number in range(20)])
        server.send_signal(signal.SIGTERM)
        out, _ = server.communicate(timeout=60)
    assert {status for status, _ in answers} == {202}
    assert server.returncode == 0
    assert json.loads(out)["accepted"] == 20

    async def depth() -> int:
        async with await connect(url) as broker:
            return await broker.depth("orders")

    assert asyncio.run(depth()) == 20


def test_under_load_202_is_durable_and_the_rest_is_told_503(tmp_path: Path) -> None:
    """Nobody takes messages away and many clients post at once: as many fit as fit, and exactly those are kept."""
    command = [sys.executable, "-m", "flyball", "publish", "amqp://127.0.0.1:1/", "orders", "--json"]
    command += ["--listen", "127.0.0.1:0", "--outbox", str(tmp_path / "o.db"), "--max-outbox-bytes", "40000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = re.search(r":(\d+)/publish", server.stderr.readline())
        assert found is not None
        port = int(found[1])

        def client(number: int) -> list[tuple[int, dict[str, str]]]:
            return post(port, [(bytes(200), {"X-Message-Id": f"{number}-{n}"}) for n in range(40)])

        with ThreadPoolExecutor(16) as pool:
            answers = [answer for answers in pool.map(client, range(16)) for answer in answers]
        server.kill()  # 202 has been said: it may end in any way
    accepted = {document["id"] for status, document in answers if status == 202}
    refused = [document["error"] for status, document in answers if status == 503]
    assert len(accepted) + len(refused) == 16 * 40
    assert refused
    assert all("do not fit" in reason for reason in refused)
    with SqliteDatabase(tmp_path / "o.db") as database:
        assert {pending.message.id for pending in Outbox(database).read(0, 1 << 62, 1000)} == accepted


async def ask(port: int, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    answer = await reader.readline()
    writer.close()
    return answer


def in_memory() -> Publisher:
    return Publisher("memory://", channel="q", outbox=None, declare="queue")


async def send_without_reading(port: int) -> socket.socket:
    """Ask until the server can write no more answers: it waits for this client."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    requests = b"GET /health HTTP/1.1\r\n\r\n" * 500
    failures = 0
    while failures < 20:
        try:
            client.send(requests)
            failures = 0
        except BlockingIOError:
            failures += 1
            await asyncio.sleep(0.02)
        except ConnectionError:  # disconnected already
            break
    return client


def test_it_closes_while_a_client_does_not_read() -> None:
    async def main() -> None:
        async with in_memory() as publisher:
            async with Listener(publisher) as listener:
                client = await send_without_reading(listener.port)
            client.close()

    asyncio.run(main())


def test_clients_that_do_not_read_are_disconnected_and_others_get_their_connections() -> None:
    async def main() -> None:
        listener = Listener(publisher := in_memory(), most_connections=2, idle_timeout_s=0.5)
        async with publisher, listener:
            clients = [await send_without_reading(listener.port) for _ in range(2)]
            health = b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n"
            while b" 200 " not in await ask(listener.port, health):
                await asyncio.sleep(0.05)
            for client in clients:
                client.close()

    asyncio.run(main())


def test_idle_connections_keep_no_client_away_and_leave_descriptors_to_the_outbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))

    async def main() -> None:
        async with in_memory() as publisher, Listener(publisher) as listener:
            address = "127.0.0.1", listener.port
            idle = [await asyncio.to_thread(socket.create_connection, address) for _ in range(40)]
            idle[0].sendall(b"POST /publish HTTP/1.1\r\n")  # a client that never ends its request
            answers = await asyncio.to_thread(post, listener.port, [(b"x", {})] * 3)
            assert [status for status, _ in answers] == [202] * 3
            assert len(listener._clients) <= 15
            for each in idle:
                each.close()

    asyncio.run(main())


def test_the_command_ends_on_a_signal_while_a_client_does_not_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flyball", "publish", f"sqlite:///{tmp_path / 'broker.db'}", "orders"]
    command += ["--declare", "queue", "--listen", "127.0.0.1:0", "--outbox", str(tmp_path / "o.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = re.search(r":(\d+)/publish", server.stderr.readline())
            assert found is not None
            client = asyncio.run(send_without_reading(int(found[1])))
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=60) == 0
            client.close()
        finally:
            server.kill()


@pytest.mark.parametrize("size", [2001, 5_000_000, 50_000_000])
def test_a_client_that_sends_too_much_gets_413(size: int) -> None:
    async def main() -> None:
        async with in_memory() as publisher, Listener(publisher, max_body_bytes=2000) as listener:
            for _ in range(3):
                ((status, document),) = await asyncio.to_thread(post, listener.port, [(bytes(size), {})])
                assert (status, document) == (
                    413,
                    {"error": f"a message must have at most 2000 bytes, got {size}"},
                )

    asyncio.run(main())


@pytest.mark.parametrize("name", ["Content-Length", "X-Message-Urgency"])
def test_a_number_of_thousands_of_digits_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    length = "" if name == "Content-Length" else "Content-Length: 1\r\n"
    request = f"POST /publish HTTP/1.1\r\n{length}{name}: {'1' * 5000}\r\n\r\nx"

    async def main() -> None:
        async with in_memory() as publisher, Listener(publisher) as listener:
            assert b" 400 " in await ask(listener.port, request.encode())

    asyncio.run(main())
    assert not caplog.records


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ("Host: HERE", None, 202),
        ("Host: localhost:8080", None, 202),
        ("Host: [::1]:8080", None, 202),
        ("Host: HERE\r\nOrigin: http://HERE", None, 202),
        ("Host: HERE\r\nOrigin: http://evil.example", None, 403),
        ("Host: HERE\r\nOrigin: null", None, 403),
        ("Host: HERE\r\nOrigin: http://127.0.0.1:1", None, 403),
        # A name of the other site that leads to this machine:
        ("Host: evil.example\r\nOrigin: http://evil.example", None, 403),
        ("Host: evil.example", None, 403),
        ("Host: HERE\r\nHost: evil.example", None, 400),
        ("Host: HERE", "secret", 401),
        ("Host: HERE\r\nAuthorization: Bearer other", "secret", 401),
        ("Host: HERE\r\nAuthorization: secret", "secret", 401),
        ("Host: HERE\r\nAuthorization: Bearer secret", "secret", 202),
        ("Host: queue.example\r\nAuthorization: Bearer secret", "secret", 202),
        ("Host: HERE\r\nOrigin: http://evil.example\r\nAuthorization: Bearer secret", "secret", 403),
    ],
)
def test_web_pages_of_other_sites_and_wrong_tokens_are_refused(
    headers: str, token: str | None, status: int
) -> None:
    async def main() -> None:
        async with in_memory() as publisher, Listener(publisher, token=token) as listener:
            request = (
                f"POST /publish HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n{headers}\r\n\r\nbody"
            )
            answer = await ask(listener.port, request.replace("HERE", f"127.0.0.1:{listener.port}").encode())
            assert int(answer.split()[1]) == status
            assert publisher.stats.accepted == (status == 202)
            assert b" 200 " in await ask(listener.port, b"GET /health HTTP/1.1\r\n\r\n")

    asyncio.run(main())


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\n"])
def test_an_unfit_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidValue, match="printable ASCII characters without spaces") as refused:
        Listener(in_memory(), token=token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize("source", ["variable", "file"])
def test_the_command_takes_its_token_from_where_others_cannot_see_it(tmp_path: Path, source: str) -> None:
    command = [sys.executable, "-m", "flyball", "publish", f"sqlite:///{tmp_path / 'broker.db'}", "orders"]
    command += ["--declare", "queue", "--listen", "127.0.0.1:0", "--outbox", str(tmp_path / "o.db")]
    environment = dict(os.environ)
    if source == "file":
        (tmp_path / "token").write_text("secret\n")
        command += ["--token-file", str(tmp_path / "token")]
    else:
        environment["FLYBALL_LISTEN_TOKEN"] = "secret"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stderr is not None
        found = re.search(r":(\d+)/publish", server.stderr.readline())
        assert found is not None
        answers = post(int(found[1]), [(b"1", {"Authorization": "Bearer secret"}), (b"2", {})])
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert [status for status, _ in answers] == [202, 401]


def test_what_the_broker_does_not_take_is_413_and_the_connection_stays_open() -> None:
    async def main() -> None:
        publisher = Publisher("memory://listen?max_body_bytes=100", channel="q", outbox=None, declare="queue")
        async with publisher, Listener(publisher) as listener:
            answers = await asyncio.to_thread(post, listener.port, [(bytes(101), {}), (bytes(100), {})])
        assert [status for status, _ in answers] == [413, 202]
        assert "has 101 bytes, this broker accepts 100" in answers[0][1]["error"]
        assert (publisher.stats.accepted, publisher.stats.confirmed) == (1, 1)

    asyncio.run(main())


def test_what_never_fits_into_the_outbox_is_413(tmp_path: Path) -> None:
    async def main() -> None:
        outbox = OutboxConfig(tmp_path / "o.db", max_bytes=1000)
        publisher = Publisher("memory://", channel="orders", outbox=outbox, declare="queue")
        async with publisher, Listener(publisher) as listener:
            answers = await asyncio.to_thread(post, listener.port, [(bytes(1001), {}), (b"fits", {})])
        assert [status for status, _ in answers] == [413, 202]

    asyncio.run(main())


def test_a_publisher_that_closes_is_no_fault_of_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = Publisher("memory://", channel="orders", outbox=tmp_path / "o.db", declare="queue")
        async with publisher:
            listener = await Listener(publisher).__aenter__()
        ((status, document),) = await asyncio.to_thread(post, listener.port, [(b"late", {})])
        await listener.__aexit__(None, None, None)
        assert (status, document) == (503, {"error": "this publisher is closed: make another one"})

    asyncio.run(main())
