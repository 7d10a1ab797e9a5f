"""Batches come back exactly as they went in, whole and in ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball.brokers.port import Message
from flyball.brokers.sqlite.codec import Batch, encode

HEADERS = st.dictionaries(
    st.text(max_size=5),
    st.text(max_size=5) | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.binary(max_size=5),
    max_size=3,
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=40),
    id=st.text(max_size=6) | st.uuids().map(lambda value: value.hex),
    key=st.none() | st.binary(max_size=6),
    headers=HEADERS | st.just({}),
    event_time_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    content_type=st.none() | st.sampled_from(["text/plain", "application/json"]),
)


@given(st.lists(MESSAGES, min_size=1, max_size=12), st.data())
def test_round_trip(messages: list[Message], data: st.DataObject) -> None:
    batch = Batch(encode(messages))
    assert batch.count == len(messages)
    assert batch.messages() == messages
    low = data.draw(st.integers(0, len(messages)))
    high = data.draw(st.integers(low, len(messages)))
    assert batch.messages(low, high) == messages[low:high]
    assert batch.bodies(low, high) == [message.body for message in messages[low:high]]
    for got, sent in zip(batch.messages(), messages, strict=True):
        assert [type(value) for value in got.headers.values()] == [type(value) for value in sent.headers.values()]


def test_a_layout_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="layout 9"):
        Batch(b"\x09" + encode([Message(b"x")])[1:])
