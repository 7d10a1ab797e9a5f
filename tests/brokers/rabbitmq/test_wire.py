"""Our frames are AMQP: what we write pika reads, what pika writes we read, however the bytes are cut."""

from __future__ import annotations

from typing import Any

import pika
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from flyball.brokers.port import Message
from flyball.brokers.rabbitmq.codec import APP_ID, PublishFrames, from_wire, to_properties
from flyball.brokers.rabbitmq.delivery_frames import Properties
from flyball.brokers.rabbitmq.pika_internals import DeliveryConnection

_FRAME_MAX = 4096

_values = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
)
_messages = st.builds(
    Message,
    body=st.binary(max_size=200) | st.integers(4000, 9000).map(bytes),
    id=st.text(min_size=1, max_size=40),
    key=st.none() | st.binary(max_size=20),
    headers=st.dictionaries(st.text("abc-", min_size=1, max_size=8), _values, max_size=4),
    event_time_s=st.none() | st.floats(-1e10, 1e10),
    content_type=st.none() | st.text("abc/", max_size=20),
)


class _Offline(DeliveryConnection):
    """The reading half of a connection, without a socket; what it leaves to pika is read by pika's own decoder."""

    def __init__(self) -> None:
        self.handlers, self.large_properties = {}, {}
        self.params = pika.ConnectionParameters(frame_max=_FRAME_MAX)
        self._frame_buffer = b""
        self.bytes_received = self.frames_received = 0
        self.order: list[tuple[Any, ...]] = []

    def _process_frame(self, frame_value: Any) -> None:
        if isinstance(frame_value, frame.Method):
            self.order.append((frame_value.method.delivery_tag,))


def _decode(raw: bytes) -> list[Any]:
    found = []
    while raw:
        used, one = frame.decode_frame(raw)
        assert one is not None
        found.append(one)
        raw = raw[used:]
    return found


@given(_messages)
def test_pika_reads_what_we_write(message: Message) -> None:
    pieces: list[bytes] = []
    PublishFrames(7, "flyball", "city.lyon", _FRAME_MAX, APP_ID).append(
        pieces, to_properties(message), message.body
    )
    assert all(len(one.marshal()) <= _FRAME_MAX for one in _decode(b"".join(pieces))[2:])
    method, header, *bodies = _decode(b"".join(pieces))
    assert (method.method.exchange, method.method.routing_key) == ("flyball", "city.lyon")
    assert method.method.mandatory
    assert {one.channel_number for one in (method, header, *bodies)} == {7}
    assert header.body_size == len(message.body)
    assert b"".join(body.fragment for body in bodies) == message.body
    assert header.properties.delivery_mode == 2
    assert from_wire(header.properties, message.body)[0] == message


@given(st.lists(_messages, max_size=6), st.lists(st.integers(1, 700), min_size=1, max_size=10))
def test_we_read_what_pika_writes_however_it_is_cut(messages: list[Message], cuts: list[int]) -> None:
    raw = b""
    for number, message in enumerate(messages, 1):
        deliver = spec.Basic.Deliver("consumer", number, number % 2 == 0, "flyball", "city.lyon")
        raw += frame.Method(3, deliver).marshal()
        properties = to_properties(message)
        properties.correlation_id, properties.priority, properties.type = "c", 4, "t"
        raw += frame.Header(3, len(message.body), properties).marshal()
        limit = _FRAME_MAX - 8
        for start in range(0, len(message.body), limit):
            raw += frame.Body(3, message.body[start : start + limit]).marshal()
        raw += frame.Heartbeat().marshal()
    connection = _Offline()
    order = connection.order
    connection.handlers[3] = lambda number, redelivered, key, properties, body: order.append(
        (number, redelivered, key, from_wire(properties, body)[0])
    )
    at = turn = 0
    while at < len(raw):
        size = cuts[turn % len(cuts)]
        connection._on_data_available(raw[at : at + size])
        at, turn = at + size, turn + 1
    # Large bodies are left to pika, whole, as heartbeats are; all stay in order, and nothing else goes that way.
    assert [entry[0] for entry in order] == list(range(1, len(messages) + 1))
    assert [len(entry) > 1 for entry in order] == [len(one.body) <= _FRAME_MAX - 8 for one in messages]
    for number, redelivered, key, message in (entry for entry in order if len(entry) > 1):
        assert (redelivered, key, message) == (number % 2 == 0, "city.lyon", messages[number - 1])
        assert len(message.body) <= _FRAME_MAX - 8
    assert connection.bytes_received == len(raw)
    assert connection._frame_buffer == b""


@given(_messages, st.data())
def test_properties_of_any_content_are_read_or_named_unreadable(message: Message, data: st.DataObject) -> None:
    raw = bytearray(b"".join(to_properties(message).encode()))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    flags = int.from_bytes(raw[:2], "big")
    properties = Properties(bytes(raw), 2, flags, data.draw(st.integers(2, len(raw))))
    got, _, unreadable = from_wire(properties, message.body)
    assert got.body == message.body
    assert got.id
    assert unreadable is None or "\n" not in unreadable
