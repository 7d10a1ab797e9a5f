"""Connecting and closing: several hosts, calls that are cancelled, silent servers, and what errors say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from pika.exceptions import ConnectionOpenAborted, ProbableAuthenticationError

from flyball.brokers import Message, connect
from flyball.brokers.port import LoginRefused, Unreachable
from flyball.brokers.rabbitmq.config import RabbitSettings
from flyball.brokers.rabbitmq.errors import connection_error
from flyball.brokers.url import BrokerUrl
from flyball.futures import wait_at_most
from flyball.servers.ports import LOOPBACK, free_ports
from flyball.servers.proxy import FaultProxy
from flyball.servers.rabbitmq import RabbitMqNode, TlsFiles, installed

pytestmark = pytest.mark.skipif(not installed(), reason="needs a node: apt-get install rabbitmq-server")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("patience_s", [0.05, 0.3, 0.5])
def test_a_cancelled_connect_leaves_no_connection(rabbitmq: RabbitMqNode, patience_s: float) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        for _ in range(5):
            with suppress(TimeoutError):
                broker = await wait_at_most(connect(f"amqp://{LOOPBACK}:{proxy.port}/"), patience_s)
                await broker.close()
        await _until(lambda: proxy.connections == 0)

    with FaultProxy(rabbitmq.ports.amqp, delay_s=0.1) as proxy:
        asyncio.run(scenario(proxy))


def test_the_first_host_that_answers_is_used(rabbitmq: RabbitMqNode) -> None:
    async def scenario(first: FaultProxy, second: FaultProxy) -> None:
        (dead,) = free_ports(1)
        url = f"amqp://{LOOPBACK}:{dead},{LOOPBACK}:{first.port},{LOOPBACK}:{second.port}/"
        async with await connect(url) as broker:
            await broker.declare("hosts")
            sender, receiver = await broker.sender("hosts"), await broker.receiver("hosts")
            assert (first.connections, second.connections) == (2, 0)
            first.refuse()
            first.cut()
            message = Message(b"x")
            while not all(result.ok for result in await sender.send_batch([message])):
                pass
            (delivery, *_) = await receiver.receive()
            assert delivery.message.id == message.id
            assert (first.connections, second.connections) == (0, 2)
            await broker.delete("hosts")

    with FaultProxy(rabbitmq.ports.amqp) as first, FaultProxy(rabbitmq.ports.amqp) as second:
        asyncio.run(scenario(first, second))


def test_closing_at_a_silent_server_takes_no_longer_than_noticing_that_it_is_silent(
    rabbitmq: RabbitMqNode,
) -> None:
    async def scenario(proxy: FaultProxy) -> None:
        broker = await connect(f"amqp://{LOOPBACK}:{proxy.port}/?heartbeat_s=600")
        await broker.declare("silent")
        for _ in range(3):
            await broker.sender("silent")
            await broker.receiver("silent")
        proxy.stall()
        async with asyncio.timeout(14):  # less than an answer may take; it was that for each sender
            await broker.close()

    with FaultProxy(rabbitmq.ports.amqp) as proxy:
        asyncio.run(scenario(proxy))


def test_what_closes_or_does_not_speak_amqp_is_named(rabbitmq: RabbitMqNode) -> None:
    with FaultProxy(rabbitmq.ports.amqp) as proxy:
        proxy.refuse()
        with pytest.raises(Unreachable, match=r"closed it|reset by peer"):
            asyncio.run(connect(f"amqp://{LOOPBACK}:{proxy.port}/"))

    async def connect_to_other_protocol() -> None:
        async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example ESMTP\r\n")
            writer.close()

        async with await asyncio.start_server(greet, LOOPBACK, 0) as server:
            await connect(f"amqp://{LOOPBACK}:{server.sockets[0].getsockname()[1]}/")

    with pytest.raises(Unreachable, match="does not speak AMQP"):
        asyncio.run(connect_to_other_protocol())


def test_a_server_that_ends_in_the_middle_of_the_login_has_not_refused_it() -> None:
    settings = RabbitSettings.of(BrokerUrl.parse("amqp://u:hunter2@h/"))
    lost = connection_error(ProbableAuthenticationError("…"), settings, has_received=True, stream_lost=True)
    assert isinstance(lost, Unreachable)
    refused = connection_error(ProbableAuthenticationError("…"), settings, has_received=True, stream_lost=False)
    assert isinstance(refused, LoginRefused)
    silent = connection_error(ConnectionOpenAborted("…"), settings, has_received=False, stream_lost=False)
    assert "does not answer" in str(silent)


def test_a_server_that_closes_each_connection_is_named() -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        async with server:
            await connect(f"amqp://127.0.0.1:{port}/")

    with pytest.raises(Unreachable, match="accepted the connection and closed it"):
        asyncio.run(scenario())


def test_no_login_of_the_management_plugin_is_printed(rabbitmq: RabbitMqNode) -> None:
    async def channels(address: str) -> str:
        async with await connect(f"{rabbitmq.amqp_url}?management={address}") as broker:
            try:
                await broker.channels()
            except (Unreachable, LoginRefused) as error:
                return f"{error} {error!r}"
        return "listed"

    (dead,) = free_ports(1)
    absent = asyncio.run(channels(f"http://admin:hunter2@{LOOPBACK}:{dead}"))
    assert str(dead) in absent
    assert "hunter2" not in absent
    wrong = asyncio.run(channels(f"http://admin:hunter2@{LOOPBACK}:{rabbitmq.ports.management}"))
    assert "refused the login" in wrong
    assert "hunter2" not in wrong
    assert asyncio.run(channels(f"http://guest:guest@{LOOPBACK}:{rabbitmq.ports.management}")) == "listed"


def test_the_management_plugin_is_asked_with_tls_where_the_broker_is(tls_files: TlsFiles) -> None:
    (port,) = free_ports(1)
    config = {
        "management.ssl.port": str(port),
        "management.ssl.cacertfile": str(tls_files.authority),
        "management.ssl.certfile": str(tls_files.certificate),
        "management.ssl.keyfile": str(tls_files.key),
    }

    async def names(url: str) -> list[str]:
        async with await connect(url) as broker:
            await broker.declare("listed")
            listed = [channel.name for channel in await broker.channels()]
            await broker.delete("listed")
            return listed

    with RabbitMqNode(plugins=("rabbitmq_management",), tls=tls_files, config=config) as node:
        trusted = f"ca_file={tls_files.authority}"
        assert "listed" in asyncio.run(names(f"{node.amqps_url}?{trusted}&management={port}"))
        assert "listed" in asyncio.run(names(f"{node.amqps_url}?{trusted}&management=https://localhost:{port}"))
        assert "listed" in asyncio.run(names(f"{node.amqp_url}?{trusted}&management=https://localhost:{port}"))
        with pytest.raises(Unreachable, match="management"):
            asyncio.run(names(f"{node.amqp_url}?management=https://localhost:{port}"))  # an unknown authority
        with pytest.raises(Unreachable, match="https:"):  # never in plain text
            asyncio.run(names(f"{node.amqps_url}?{trusted}&management={node.ports.management}"))
