"""HTTP into the outbox: 202 when durable, 503 when full, 413 when too large."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flyball import OutboxConfig, Publisher
from flyball.brokers import connect
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
    async def ask(port: int, raw: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        answer = await reader.readline()
        writer.close()
        return answer

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
