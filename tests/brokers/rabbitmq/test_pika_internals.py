"""Private parts of pika are used in one file, and the installed pika has all of them."""

from __future__ import annotations

import ast
import asyncio
import socket
from pathlib import Path

import pika
import pytest

from flyball.brokers.rabbitmq import pika_internals
from flyball.brokers.rabbitmq.config import RabbitSettings
from flyball.brokers.rabbitmq.connection import Link
from flyball.brokers.url import BrokerUrl
from flyball.servers.rabbitmq import RabbitMqNode

_FILE = Path(pika_internals.__file__)
_CONNECTION = (
    "_frame_buffer",
    "_on_data_available",
    "_on_stream_terminated",
    "_output_marshaled_frames",
    "_terminate_stream",
    "_transport",
)
_CHANNEL = ("_cancelled", "_consumers", "_rpc")
_TRANSPORT = ("_sock",)


def _private_attributes(source: str, *, of_self: bool) -> set[str]:
    """Attributes with one leading underscore that the source uses: of anything but `self`, or of `self` too."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if of_self or not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


@pytest.mark.parametrize(
    ("part", "names"), [("connection", _CONNECTION), ("channel", _CHANNEL), ("transport", _TRANSPORT)]
)
def test_pika_has_every_private_part_that_is_used(
    rabbitmq: RabbitMqNode, part: str, names: tuple[str, ...]
) -> None:
    async def missing() -> list[str]:
        link = Link(RabbitSettings.of(BrokerUrl.parse(rabbitmq.url)), patience=1)
        await link.open()
        channel = (await link.channel()).raw
        connection = channel.connection
        owner = {"connection": connection, "channel": channel, "transport": connection._transport}[part]
        absent = [name for name in names if not hasattr(owner, name)]
        await link.close()
        return absent

    absent = asyncio.run(missing())
    assert not absent, (
        f"pika {pika.__version__} has no {', '.join(absent)} in its {part} any more: change "
        f"{_FILE.name}, or exclude this version in pyproject.toml"
    )


def test_the_list_of_private_parts_is_complete() -> None:
    assert _private_attributes(_FILE.read_text(), of_self=True) == {*_CONNECTION, *_CHANNEL, *_TRANSPORT}


def test_no_other_file_uses_private_parts() -> None:
    others = [path for path in _FILE.parent.glob("*.py") if path != _FILE]
    assert len(others) > 5
    used = {path.name: _private_attributes(path.read_text(), of_self=False) for path in others}
    assert {name: attributes for name, attributes in used.items() if attributes} == {}


def test_a_connection_that_is_reset_while_it_is_being_made_fails_at_once() -> None:
    """It is no longer connected when pika looks, which raises where nobody would hear it."""

    async def outcome() -> BaseException:
        done: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        services = pika_internals.IoServices()
        services.create_streaming_connection(lambda: None, socket.socket(), done.set_result)
        return await done

    assert isinstance(asyncio.run(outcome()), ConnectionResetError)
